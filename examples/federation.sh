#!/usr/bin/env bash
# A server and three sites, each by the commands that it would run on a machine of its own:
#
#     examples/federation.sh [FOLDER [PORT]]
#
# 'fedgram federation demo FOLDER' does the same in one command.
set -euo pipefail
folder=${1:-federation} port=${2:-8443}
mkdir -p "$folder" && cd "$folder"
stop() { # whatever happens, nothing goes on running
  local running
  running=$(jobs -p)
  if [ -n "$running" ]; then kill $running 2>/dev/null; wait; fi
}
trap stop EXIT

echo "== every site has a file of features; here the embedded digits are split among three"
python - <<'END'
import fedgram as fg
import numpy as np

digits = fg.load_dataset("digits")
shares = fg.partition(digits, fg.PartitionPlan(clients=3))
for name, share in zip(("north", "west", "south"), shares):
    mine = np.concatenate([share.train, share.test])
    split = np.repeat([0, 2], [len(share.train), len(share.test)])  # 0: training, 2: test
    np.savez(f"{name}.npz", x=digits.x[mine], y=digits.y[mine], split=split,
             classes=digits.classes)
END

echo "== whoever leads the study writes its folder and makes the keys"
fedgram federation init study --site north --site west --site south -m apfl-linear \
  --address "127.0.0.1:$port"
fedgram federation keys study

echo "== and hands a folder to each site, which puts its features there"
for site in north west south; do
  cp -r "study/sites/$site" "$site"
  rm "study/sites/$site/node" # a private key is its site's alone
  mv "$site.npz" "$site/features.npz"
done

echo "== on the server's machine"
fedgram federation server study >server.out 2>&1 &
for _ in {1..60}; do
  if grep -q "the server is up" server.out; then break; fi
  sleep 2
done
fedgram federation register study

echo "== at each site"
for site in north west south; do
  fedgram federation site "$site" >"$site.out" 2>&1 &
done

echo "== on the server's machine again"
fedgram federation run study
fedgram report study/server/runs/0001 -o report.html
