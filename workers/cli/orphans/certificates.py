"""Newest certificate of the applies of a plan of a Pulsar cluster, for answers.

Without the records bucket, commands answer all the same what the catalog and the cluster say.
"""

from logstore.errors import SextonError
from workers.cli.command_context import CommandContext


def describe_certificate(context: CommandContext, run_id: str) -> str:
    """Return the certificate's key as text for people. `run_id` is that of the plan."""
    from activities.pulsar.apply_certificates import ApplyCertificates  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.findings import apply_run_id  # noqa: PLC0415

    try:
        certificate = ApplyCertificates(context.log.record_objects).find_newest(apply_run_id(run_id))
    except SextonError as error:
        return f"unknown: {error}"
    if certificate is None:
        return "none: nothing was deleted"
    return f"{certificate.key}\nin the records bucket, with {certificate.removals:,} removals"


def check_certificate(context: CommandContext, run_id: str) -> dict[str, object] | None:
    """Return facts about the certificate, also whether it has its digest, or `None` if there is none."""
    from activities.pulsar.apply_certificates import ApplyCertificates  # noqa: PLC0415 - start-up time
    from logstore.reconciliation.findings import apply_run_id  # noqa: PLC0415

    facts: dict[str, object] = {"key": None, "removals": None, "intact": None, "error": None}
    try:
        certificates = ApplyCertificates(context.log.record_objects)
        certificate = certificates.find_newest(apply_run_id(run_id))
        if certificate is None:
            return None
        facts |= {"key": certificate.key, "removals": certificate.removals}
        return facts | {"intact": certificates.is_intact(certificate)}
    except SextonError as error:
        return facts | {"error": str(error)}
