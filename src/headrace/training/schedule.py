"""How long a job is, and how far."""

from typing import Any

from headrace.errors import OptionError
from headrace.loading.pack_protocols import MicrobatchPackStream
from headrace.training.parameters import JobScheduleConfig, StepActionPeriod, StepActionSpecial

__all__ = ["JobSchedule"]


class JobSchedule:
    """The steps of a job: current_step are done, of total_steps, those before a resume included.

    total_steps is the configured number, else that of the data. Of data that was gone on with, what is left of it
    counts (its `steps_left`, where it has that): with another global batch size than before nothing is left out.
    OptionError (a ValueError) where more steps are configured than there is data for, where nobody says how many, and
    where the data has not one.
    """

    def __init__(self, config: JobScheduleConfig, stream: MicrobatchPackStream, current_step: int = 0) -> None:
        left: int | None = getattr(stream, "steps_left", None)
        available = stream.total_steps if left is None else current_step + left
        if config.total_steps is not None and available is not None and config.total_steps > available:
            raise OptionError(
                "total_steps",
                config.total_steps,
                f"at most {available}, the steps that the data has; lower it, or give the data more epochs",
            )
        total = available if config.total_steps is None else config.total_steps
        if total is None:
            raise OptionError("total_steps", None, "a number, since the data has no end that is known")
        if total == 0:  # else a job that trains nothing would end as if it had
            raise OptionError(
                "total_steps",
                stream.total_steps,  # a stream may say better why there are none
                "at least 1: the data does not fill one step; give it smaller ones, or drop_last=False",
            )
        self.current_step = current_step
        self.total_steps = total

    def step(self) -> None:
        """Count one more step as done."""
        self.current_step += 1

    def should_do_action(
        self, action: StepActionPeriod, enable_on_last_step_if_periodic: bool = False, is_post_step_action: bool = False
    ) -> bool:
        """Whether something periodic is due with this step.

        That is the step being made, or with is_post_step_action the one that step() counted last.
        enable_on_last_step_if_periodic has it done behind the last step, too. OptionError for a period below 1.
        """
        step = self.current_step + (0 if is_post_step_action else 1)
        is_last = step == self.total_steps
        match action:
            case StepActionSpecial.disable:
                return False
            case StepActionSpecial.last_step:
                return is_last
            case int() if action >= 1:
                return step % action == 0 or (enable_on_last_step_if_periodic and is_last)
            case _:
                raise OptionError("action", action, "a number of steps, at least 1, or 'last_step' or 'disable'")

    def state_dict(self) -> dict[str, Any]:
        """The steps that are done."""
        return {"current_step": self.current_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the steps that are done; the total stays."""
        self.current_step = int(state_dict["current_step"])
