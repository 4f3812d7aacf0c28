"""The log itself: vocabulary, rules, formats."""
