"""Search attributes: few, short, and what an operator filters by. The one list that is registered."""

from typing import Any

from temporalio.common import SearchAttributeKey

TOPIC = SearchAttributeKey.for_keyword("SextonTopic")  # encoded name
LEDGER_ID = SearchAttributeKey.for_int("SextonLedgerId")
OUTCOME = SearchAttributeKey.for_keyword_list("SextonOutcome")  # every outcome that occurred
RUN_ID = SearchAttributeKey.for_keyword("SextonRunId")  # batch or plan

ALL: tuple[SearchAttributeKey[Any], ...] = (TOPIC, LEDGER_ID, OUTCOME, RUN_ID)
