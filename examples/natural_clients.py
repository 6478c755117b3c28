"""Write a table with natural clients that a package carries: statsmodels' survey of Fair (1978).

python examples/natural_clients.py fair.csv
fedgram features fair.csv --label affair --client group -o fair.npz
fedgram study natural-clients --source fair=fair.npz

6,366 women; the six occupations are the clients, and the class is whether there was an affair.
"""

import sys

import statsmodels.api


def main(path: str) -> None:
    table = statsmodels.api.datasets.fair.load_pandas().data
    table["affair"] = (table["affairs"] > 0).map({True: "yes", False: "no"})
    table["group"] = "occupation-" + table["occupation"].astype(int).astype(str)
    table.drop(columns=["affairs", "occupation"]).to_csv(path, index=False)


if __name__ == "__main__":
    main(sys.argv[1])
