"""What scripts/compare.py is made of: arms, rounds of fresh processes, statistics, verdicts, reports."""
