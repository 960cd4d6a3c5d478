"""What is kept of a receipt.

A provider is other people's code, and what it hands over may be anything. Here it becomes plain JSON, before anybody
compares it or stores it. A receipt that proves the intent is not lost for a field beside the proof that cannot be
stored: then the proof alone is kept, with a note that something was left out. For the effect has happened, and what can
be known is settled; it would be wrong to call it failed, and needless to call it unknown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from .effects import Contract, Intent, Receipt
from .errors import NotStorable
from .executor import encoded, reason_of


@dataclass(frozen=True)
class Proof(Receipt):
    """A receipt without the fields that could not be stored. `left_out` says why."""

    left_out: str = ""


def plain(receipt: object, intent: Intent, contract: Contract | None) -> Receipt:
    """The receipt as JSON that can be stored, if need be with nothing but its proof.

    Raises NotStorable for what is no receipt, and for a proof that cannot be stored either. Nothing else: whatever an
    object of the provider's raises is a reason why it cannot be stored.
    """
    try:
        if not isinstance(receipt, Receipt):
            raise NotStorable(f"a {type(receipt).__name__} is no receipt")
        fields = dict(receipt.fields)
        try:
            return _stored_and_read_back(Receipt(receipt.receipt_id, receipt.key, receipt.fingerprint, fields))
        except NotStorable as error:
            named = intent if contract is None or contract.verify is None else contract.verify
            proof = {name: fields[name] for name in named if name in fields}
            return _stored_and_read_back(
                Proof(receipt.receipt_id, receipt.key, receipt.fingerprint, proof, left_out=str(error))
            )
    except NotStorable:
        raise
    except BaseException as error:  # noqa: BLE001  a mapping of the provider's may raise anything
        raise NotStorable(reason_of(error)) from None


def text_of(receipt: Receipt) -> str:
    """A receipt as JSON text. Raises NotStorable; never for one that `plain` has returned."""
    members = {"receipt_id": receipt.receipt_id, "key": receipt.key, "fingerprint": receipt.fingerprint}
    left_out = {"left_out": receipt.left_out} if isinstance(receipt, Proof) else {}
    return encoded({**members, "fields": dict(receipt.fields), **left_out})


def result_of(receipt: Receipt) -> str:
    """What an effect task has as its result: the receipt's id and its fields. Raises as text_of does."""
    return encoded({**receipt.fields, "receipt_id": receipt.receipt_id})


def _stored_and_read_back(receipt: Receipt) -> Receipt:
    read = json.loads(text_of(receipt))
    result_of(receipt)
    return Proof(**read) if isinstance(receipt, Proof) else Receipt(**read)
