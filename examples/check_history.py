"""Check a fedgram history, and certificates of deletion, without fedgram.

usage: python check_history.py FINGERPRINT HISTORY.json [CERTIFICATE.json ...]

FINGERPRINT is that of the operator's first key, as an auditor wrote it down. HISTORY.json is the
file of `fedgram ledger export`. The format is described in docs/history-format.md.
"""

import hashlib
import json
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def require(condition, what):
    if not condition:
        raise ValueError(what)


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(content, salt=""):
    return hashlib.sha256(bytes.fromhex(salt) + content).hexdigest()


def check_history(fingerprint, history):
    last, link, key = None, "", ""
    for event in history["events"]:
        body = event["body"]
        signed = b"fedgram history\n" + canonical(body)
        if last:
            require(body["number"] == last["number"] + 1, "an event is missing")
            require(body["before"] == last["after"], "the totals are not in sequence")
        require(body["previous"] == link, "the chain is broken")
        if not key and body["key"]:  # the first key signs the event that names it
            key = body["key"]
            require(sha256(bytes.fromhex(key)) == fingerprint, "another first key")
        if key:
            public, signature = bytes.fromhex(key), bytes.fromhex(event["signature"])
            require(body["signer"] == sha256(public), "signed by another key")
            Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)
        check_detail(event)
        last, link, key = body, sha256(signed), body["key"] or key
    require(key, "the history is not signed")
    check_earlier(history["events"][0], history["earlier"])
    for commitment, opening in history["openings"].items():
        require(sha256(opening["text"].encode(), opening["salt"]) == commitment, "wrong opening")
    require(last["after"] in history["openings"], "the last total is not opened")
    return {event["body"]["number"]: event for event in history["events"]}


def check_earlier(first, earlier):
    require(first["body"]["number"] == len(earlier) + 1, "an earlier event is missing")
    if first["body"]["what"] == "migrated" and first["detail"]:  # erased with what it commits to
        committed = {"events": len(earlier), "digest": sha256(canonical(earlier))}
        require(first["detail"] == committed, "other earlier events")


def check_detail(event):
    about = canonical({"detail": event["detail"], "samples": event["samples"]})
    erased = not event["salt"] and not event["detail"] and event["samples"] is None
    require(erased or sha256(about, event["salt"]) == event["body"]["about"], "another detail")


def check_certificate(events, certificate):
    entry, event = certificate["entry"], events[certificate["event"]]
    body, detail, total = entry["body"], entry["detail"], certificate["total_digest"]
    require(body == event["body"] and body["what"] == "forget", "not in the history")
    check_detail(entry)
    require(detail, "without detail")
    require(body["client"] == certificate["client"], "another client")
    require(body["time"] == certificate["time"], "another time")
    require(certificate["members"] == detail["members"], "other members")
    require(certificate["published_with"] == detail["published_with"], "other models")
    if total:  # empty if another member of this total was forgotten before this copy was issued
        text = f"{total} {certificate['samples']}".encode()
        require(sha256(text, certificate["salt"]) == body["after"], "another total")


if __name__ == "__main__":
    fingerprint, *files = sys.argv[1:]
    history, *certificates = [json.load(open(path, encoding="utf-8")) for path in files]
    events = check_history(fingerprint, history)
    for certificate in certificates:
        check_certificate(events, certificate)
    print(f"{len(events)} events, chained and signed; {len(certificates)} certificates, valid")
