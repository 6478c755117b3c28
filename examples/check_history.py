"""Check a fedgram history, and certificates of deletion, without fedgram.

usage: python check_history.py FINGERPRINT[,NEW ...] HISTORY.json [CERTIFICATE.json ...]

FINGERPRINT is that of the operator's first key, as an auditor wrote it down. NEW is that of a key
that replaced a lost one: the operator must confirm it, because the lost key has not signed it.
HISTORY.json is the
file of `fedgram ledger export`. The format is described in docs/history-format.md. Compare the
printed id of the ledger too: one key may sign the histories of several ledgers.
"""

import hashlib
import json
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

HISTORY = "fedgram history, format 1"
CERTIFICATE = "fedgram certificate of deletion, format 2"
STATED = {"kind", "client", "time", "event", "total_digest", "samples", "members"}
KEYS = STATED | {"published_with", "salt", "entry"}
ERASABLE = {"join", "replace", "stream", "remove", "migrated"}


def require(condition, what):
    if not condition:
        raise ValueError(what)


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(content, salt=""):
    return hashlib.sha256(bytes.fromhex(salt) + content).hexdigest()


def check_history(fingerprint, history):
    require(history["kind"] == HISTORY, f"expected a {HISTORY}")
    last, link, key = None, "", ""
    for number, event in enumerate(history["events"], start=len(history["earlier"]) + 1):
        try:
            link, key = check_event(event, last, link, key, fingerprint.lower().split(","))
        except Exception as error:
            raise ValueError(f"event {number}: {reason(error)}") from error
        last = event["body"]
    require(key, "the history is not signed")
    check_earlier(history["events"][0], history["earlier"])
    for commitment, opening in history["openings"].items():
        require(sha256(opening["text"].encode(), opening["salt"]) == commitment, "wrong opening")
    require(last["after"] in history["openings"], "the last total is not opened")
    return {event["body"]["number"]: event for event in history["events"]}


def check_event(event, last, link, key, fingerprints):
    body = event["body"]
    signed = b"fedgram history\n" + canonical(body)
    if last:
        require(body["number"] == last["number"] + 1, "an event is missing")
        require(body["before"] == last["after"], "the totals are not in sequence")
        require(body["ledger"] == last["ledger"], "of another ledger")
    require(body["previous"] == link, "the chain is broken")
    lost = body["what"] == "lost-key"
    if lost or (not key and body["key"]):  # this key signs the event that names it
        found = sha256(bytes.fromhex(body["key"]))
        require(key or found == fingerprints[0], "another first key")
        require(not key or found in fingerprints[1:], f"a key that nobody has confirmed: {found}")
        key = body["key"]
    if key:
        public, signature = bytes.fromhex(key), bytes.fromhex(event["signature"])
        require(body["signer"] == sha256(public), "signed by another key")
        Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)
    check_detail(event)
    return sha256(signed), body["key"] or key


def check_detail(event):
    about = canonical({"detail": event["detail"], "samples": event["samples"]})
    erased = not event["salt"] and not event["detail"] and event["samples"] is None
    erased = erased and event["body"]["what"] in ERASABLE
    require(erased or sha256(about, event["salt"]) == event["body"]["about"], "another detail")


def check_earlier(first, earlier):
    require(first["body"]["number"] == len(earlier) + 1, "an earlier event is missing")
    if first["body"]["what"] == "migrated" and first["detail"]:  # erased with what it commits to
        committed = {"events": len(earlier), "digest": sha256(canonical(earlier))}
        require(first["detail"] == committed, "other earlier events")


def check_certificate(events, certificate):
    require(certificate["kind"] == CERTIFICATE, f"expected a {CERTIFICATE}")
    require(set(certificate) == KEYS, "other keys than those of a certificate")
    entry, event = certificate["entry"], events.get(certificate["event"], {"body": None})
    body, detail, salt = entry["body"], entry["detail"], certificate["salt"]
    require(body == event["body"] and body["what"] == "forget", "not in the history")
    check_detail(entry)
    require(body["client"] == certificate["client"], "another client")
    require(body["time"] == certificate["time"], "another time")
    require(certificate["members"] == detail["members"], "other members")
    require(certificate["published_with"] == detail["published_with"], "other models")
    if salt:
        text = f"{certificate['total_digest']} {certificate['samples']}".encode()
        require(sha256(text, salt) == body["after"], "another total")
    else:  # another member of this total was forgotten before this copy was issued
        require((certificate["total_digest"], certificate["samples"]) == ("", None), "not opened")


def reason(error):
    if isinstance(error, InvalidSignature):
        return "wrong signature"
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def main(fingerprint, path, *certificates):
    try:
        with open(path, encoding="utf-8") as file:
            events = check_history(fingerprint, json.load(file))
        for path in certificates:
            with open(path, encoding="utf-8") as file:
                check_certificate(events, json.load(file))
    except Exception as error:  # whatever is in the files
        return f"NOT VALID: {reason(error)} ({path})"
    ledger = next(iter(events.values()))["body"]["ledger"]
    print(f"ledger {ledger}: {len(events)} events, chained and signed")
    print(f"{len(certificates)} certificates, valid")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 2 else __doc__)
