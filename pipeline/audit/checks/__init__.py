"""What the audit looks for beside the outcomes of single messages.

Each takes frames and gives rows of `VIOLATIONS`:

* `answers.py`: commands without an answer, with one that is not theirs, and good ones that were refused;
* `names.py`: names that two messages have at the same time;
* `places.py`: records in partitions and orders that are not those of their keys;
* `letters.py`: dead letters of records that were malformed;
* `checksums.py`: the sums that the ledger gives of the messages that are pending, and of files;
* `expected.py`: ids that senders hold, and that are in no log;
* `run.py`: all of them.
"""
