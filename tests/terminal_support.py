"""A program in a terminal of a given width: what it writes, and what stays on the screen."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def in_terminal(arguments, columns, **environment):
    """Run fedgram with all its streams on a terminal; return its code and what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgram.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, "TERM": "xterm-256color", **environment},
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 120)
        assert ready, "the program writes nothing and does not end"
        try:
            more = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        written += more
    os.close(ours)
    return process.wait(), written.decode("utf-8")


def styles(written):
    """Return the numbers of all colors and styles that were asked for."""
    found = (numbers for numbers, letter in CONTROL.findall(written) if letter == "m")
    return {int(number or 0) for numbers in found for number in numbers.split(";")}


def drawn_lines(written):
    """Return every line that was drawn, without control sequences, also those erased later."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", CONTROL.sub("", written))]


def screen(written):
    """Return the lines that stay: the few movements that progress bars make are carried out."""
    lines, row, column, place = [""], 0, 0, 0
    while place < len(written):
        control = CONTROL.match(written, place)
        if control:
            numbers, letter = control.groups()
            if letter == "A":
                row = max(0, row - int(numbers or 1))
            elif letter == "K":
                lines[row] = "" if numbers == "2" else lines[row][:column]
            place = control.end()
            continue
        character, place = written[place], place + 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + character + line[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]
