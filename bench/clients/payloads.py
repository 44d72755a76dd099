"""Realistic message bodies: small JSON documents with ids, amounts and a few words."""

import numpy as np

SEQUENCE = slice(8, 20)  # position of the twelve-digit sequence number in every payload
MIN_BYTES = 20

_WORDS = (
    "order payment reminder basket invoice expires customer refund parcel retry callback unpaid reserved seat booking "
    "trial ends renewal notice delivery slot released follow up coupon shipment delayed account verification pending "
    "warehouse pickup window closes subscription charge attempt failed second contact support ticket escalates after "
    "quiet hours release stock hold confirm address before cut off driver assigned route"
).split()
CURRENCIES = ("EUR", "USD", "JPY", "CHF", "SEK", "INR", "BRL", "GBP")
KINDS = ("order.expire", "payment.remind", "basket.release", "trial.end", "webhook.retry", "ticket.escalate")


class Payloads:
    """Payloads of exactly `size` bytes (ASCII). Ids and numbers differ in each payload; words repeat, as in real data.

    A payload has its sequence number near its start, in a fixed width, so that a reader finds it without parsing.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size < MIN_BYTES:
            raise ValueError(f"a payload needs at least {MIN_BYTES} bytes: it carries its sequence number")
        self._size = size
        self._random = np.random.default_rng(seed)
        self.words = " ".join(_WORDS[i] for i in self._random.integers(0, len(_WORDS), 20_000))

    def make(self, first: int, count: int) -> list[str]:
        """`count` payloads with the sequence numbers from `first` on."""
        draw = self._random.integers
        size, words = self._size, self.words
        fields = zip(
            range(first, first + count),
            draw(0, len(KINDS), count).tolist(),
            draw(0, 1 << 48, count).tolist(),
            draw(100_000, 9_999_999, count).tolist(),
            draw(100, 500_000, count).tolist(),
            draw(0, len(CURRENCIES), count).tolist(),
            draw(0, max(len(words) - size, 1), count).tolist(),
            strict=True,
        )
        texts = []
        for seq, kind, order, customer, cents, currency, place in fields:
            head = (
                f'{{"seq":"{seq:012d}","kind":"{KINDS[kind]}","order":"{order:012x}","customer":{customer},'
                f'"amount":{cents / 100:.2f},"currency":"{CURRENCIES[currency]}","note":"'
            )
            room = size - len(head) - 2
            texts.append(f'{head}{words[place : place + room]}"}}' if room >= 0 else head[:size])
        return [text.ljust(size) for text in texts] if size > len(words) else texts
