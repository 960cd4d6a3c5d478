"""The state machine of `test_store_machine.py`: a model of the tables, and each verb of the store twice.

rows       the model: one row per row of the database, and a view in which one transaction changes some of them
steps      a worker's verbs of the hot path; attempts: those for effects and retries; hands: what both need
pools      a supervisor's verbs; recoveries: those that need a proof
doors      the verbs of the doors: submit, cancel, decide, prune
lookups    settling `unknown` by a provider's answer
provider   the world outside: requests on their way, and what was really done
sessions   real sessions, transactions that are left open, and statements that wait for them
facts      what the database shows, held against the model
judge      what the database shows, held against the invariants, without the model
stage      where verbs are carried out; the files rules_* say which, machine puts them together

A verb is an object with three methods. `send` calls the store. `predict` does the same to the model, in the same order
of locks, and says which answer it expects. `shown` is what of the store's answer is compared with that.
"""
