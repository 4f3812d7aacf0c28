"""The bare thing that workflows are measured beside: one workflow with one activity that does nothing."""

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn(name="bare")
def bare_activity(number: int) -> int:
    """Do nothing."""
    return number


@workflow.defn(name="bare")
class Bare:
    """One activity that does nothing."""

    @workflow.run
    async def run(self, number: int) -> int:
        """Run it."""
        return await workflow.execute_activity(bare_activity, number, start_to_close_timeout=timedelta(seconds=10))
