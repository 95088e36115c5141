"""Servers to test against: real object stores, and an HTTP server of our own that fails on request.

The fixtures below are there for every test in tests/ (tests/conftest.py loads `servers.fixtures`). Each test gets a
place of its own: a fresh prefix in a bucket that the servers of this test run share.

| fixtures | what serves | mark |
| --- | --- | --- |
| `s3_url`, `s3_options` | SeaweedFS, an S3 server that keeps conditional puts | `servers` |
| `azure_url`, `azure_options` | Azurite, Microsoft's Azure Blob emulator | `servers` |
| `gcs_url`, `gcs_options` | fake-gcs-server, reached with gcsfs | `servers` |
| `http_folder`, `http_url` | `faulty_http.HttpServer` over a local folder: GET, HEAD, ranges, ETags | none: fast |
| `http_server` | that server: `.rules.append(Rule(Status(503), times=2))`, `.requests`, `.count()` | none |
| `s3_proxy` | an `HttpServer` before SeaweedFS: S3 requests that meet faults | `servers` |

    @pytest.mark.servers
    def test_a_dataset_is_read_from_s3(s3_url, s3_options):
        store = open_store(s3_url, **s3_options)

    @pytest.mark.servers
    def test_a_put_whose_answer_is_lost_is_repeated(s3_url, s3_options, s3_proxy):
        s3_proxy.rules.append(Rule(Reset(performed=True), method="PUT", times=1))
        store = open_store(s3_url, **s3_options | {"endpoint": s3_proxy.url})

    def test_a_page_that_is_cut_is_read_again(http_url, http_folder, http_server):
        (http_folder / "object").write_bytes(bytes(1000))
        http_server.rules.append(Rule(Cut(100), method="GET", times=1))
        store = open_store(http_url)

The `_options` are keyword arguments of `open_store`. `make servers` gets the servers into .venv-servers; a test whose
server is not there is skipped. They start with the first test that needs them (one of each kind a test process), listen
on free ports of 127.0.0.1 only, keep their data in pytest's temporary directory, and end with the test process, however
that ends. Nothing here needs pytest but fixtures.py: `object_stores.seaweedfs(folder)` starts a server in any program.
"""
