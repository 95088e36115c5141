"""Whoever comes from Streaming 0.13 finds each of its names on one page, and its arguments with its defaults here."""

import inspect
from pathlib import Path

import pytest

import headrace

PAGE = (Path(__file__).parents[2] / "docs" / "migrating-from-streaming.md").read_text(encoding="utf-8")

STREAM = {"remote": None, "local": None, "split": None, "proportion": None, "repeat": None, "choose": None}
STREAM |= {"download_retry": None, "download_timeout": None, "validate_hash": None, "keep_zip": None}
DATASET = {"streams": None, "remote": None, "local": None, "split": None, "download_retry": 2, "download_timeout": 60.0}
DATASET |= {"validate_hash": None, "keep_zip": False, "epoch_size": None, "predownload": None, "cache_limit": None}
DATASET |= {"sampling_method": "balanced", "sampling_granularity": 1, "partition_algo": "relaxed"}
DATASET |= {"num_canonical_nodes": None, "batch_size": None, "shuffle": False, "shuffle_algo": "py1e"}
DATASET |= {"shuffle_seed": 9176, "shuffle_block_size": None, "batching_method": "random", "allow_unsafe_types": False}
DATASET |= {"replication": None, "stream_name": "stream", "stream_config": None}
SPARK = {"dataframe": inspect.Parameter.empty, "merge_index": True, "mds_kwargs": None, "udf_iterable": None}
SPARK |= {"udf_kwargs": None}

NAMES = {
    "classes": """
        StreamingDataset Stream StreamingDataLoader LocalDataset MDSWriter JSONWriter CSVWriter TSVWriter XSVWriter
    """,
    "attributes of a dataset": """
        size num_samples epoch_size num_shards shards streams spanner stream_per_shard shards_per_stream
        samples_per_shard samples_per_stream shard_offset_per_stream sample_offset_per_stream sample_offset_per_shard
        next_epoch cache_usage get_item prepare_shard evict_shard evict_coldest_shard resample_streams state_dict
        load_state_dict on_exception
    """,
    "of a stream": """
        apply_default validate_weights apply_weights get_shards prepare_shard set_up_local get_index_size
        streams_registry
    """,
    "of a loader": "state_dict load_state_dict num_samples_yielded",
    "of writers": """
        columns out keep_local compression hashes size_limit newline separator progress_bar max_workers retry exist_ok
        write finish flush_shard cancel_future_jobs encode_sample get_config Writer JointWriter SplitWriter
    """,
    "helpers": """
        merge_index index_file_urls download_timeout clean_stale_shared_memory bytes_to_int number_abbrev_to_int retry
        get_list_arg wait_for_file_to_exist get_import_exception_message get_shm_prefix SharedArray SharedBarrier
        SharedMemory SharedScalar maybe_init_dist World CloudDownloader CloudUploader dataframe_to_mds simulator
    """,
    "task classes": """
        StreamingC4 StreamingEnWiki StreamingPile StreamingCIFAR10 StreamingImageNet StreamingADE20K StreamingCOCO
        StreamingInsideWebVid StreamingOutsideGIWebVid StreamingOutsideDTWebVid StreamingVisionDataset
    """,
    "the environment": """
        RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT S3_ENDPOINT_URL S3_CANNED_ACL
        MOSAICML_STREAMING_AWS_REQUESTER_PAYS GCS_KEY GCS_SECRET AZURE_ACCOUNT_NAME AZURE_ACCOUNT_ACCESS_KEY HF_TOKEN
        COMPOSER_SFTP_KEY_FILE COMPOSER_SFTP_KNOWN_HOSTS_FILE ALIPAN_
    """,
    "algorithms": "py1e py1br py1s py2s naive stratified per_stream device_per_stream balanced fixed relaxed",
    "places": "s3:// gs:// azure:// azure-dl:// hf:// sftp:// oci:// dbfs:/ alipan://",
}


@pytest.mark.parametrize("group", NAMES)
def test_every_name_of_streaming_is_on_the_page(group):
    quoted = "".join(PAGE.split("`")[1::2])
    assert [name for name in NAMES[group].split() if name not in quoted] == []


@pytest.mark.parametrize("name", DATASET)
def test_every_parameter_of_a_streaming_dataset_has_a_row(name):
    assert f"| `{name}" in PAGE or f", `{name}" in PAGE


@pytest.mark.parametrize(
    ("name", "expected"), [("StreamingDataset", DATASET), ("Stream", STREAM), ("dataframe_to_mds", SPARK)]
)
def test_arguments_have_streaming_s_names_and_defaults(name, expected):
    given = inspect.signature(getattr(headrace, name)).parameters
    assert {option: given[option].default for option in expected} == expected


def test_every_attribute_that_is_said_to_be_the_same_is_there(tmp_path):
    with headrace.MDSWriter(out=tmp_path / "data", columns={"number": "int"}, size_limit=50) as out:
        for number in range(20):
            out.write({"number": number})
    dataset = headrace.StreamingDataset(local=tmp_path / "data")
    gone = {
        "shards",
        "spanner",
        "cache_usage",
        "evict_shard",
        "evict_coldest_shard",
        "resample_streams",
        "on_exception",
    }
    for name in NAMES["attributes of a dataset"].split():
        assert hasattr(dataset, name) == (name not in gone), name
