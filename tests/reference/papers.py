"""The papers' own recursions, written out slowly in float64 and with inverses.

Nothing here knows of fedgram: arrays in, arrays out. Each client is a pair of its features F and
its one-hot labels Y.
"""

from collections.abc import Sequence

import numpy as np

Array = np.ndarray
Pair = tuple[Array, Array]


def identity(matrix: Array) -> Array:
    return np.eye(len(matrix))


def local(features: Array, labels: Array, ridge: float) -> Pair:
    """What a client sends: C_k = F'F + ridge I and its own head C_k^-1 F'Y."""
    gram = features.T @ features
    regularized = gram + ridge * identity(gram)
    return regularized, np.linalg.inv(regularized) @ features.T @ labels


# AFL (arXiv 2405.16240).


def pairwise(u: Pair, v: Pair) -> Pair:
    """The absolute aggregation law for two clients."""
    (c_u, w_u), (c_v, w_v) = u, v
    eye, r_u, r_v = identity(c_u), np.linalg.inv(c_u), np.linalg.inv(c_v)
    both = np.linalg.inv(c_u + c_v)
    weight_u = eye - r_u @ c_v + r_u @ c_v @ both @ c_v
    weight_v = eye - r_v @ c_u + r_v @ c_u @ both @ c_u
    return c_u + c_v, weight_u @ w_u + weight_v @ w_v


def absolute_aggregation(clients: Sequence[Pair]) -> Pair:
    """The same law as the recursion that AFL and APFL (eqs. 7 to 9) run over the clients."""
    total, head = clients[0]
    for own, own_head in clients[1:]:
        eye, after = identity(own), total + own
        keep = eye - np.linalg.inv(total) @ own @ (eye - np.linalg.inv(after) @ own)
        take = eye - np.linalg.inv(own) @ total @ (eye - np.linalg.inv(after) @ total)
        total, head = after, keep @ head + take @ own_head
    return total, head


def intermediary_removed(total: Array, head: Array, clients: int, ridge: float) -> Array:
    """The RI step: take away the ridge that every client added, for plain least squares."""
    shift = clients * ridge
    return head + shift * np.linalg.inv(total - shift * identity(total)) @ head


def ridge_put_back(total: Array, head: Array, clients: int, ridge: float, wanted: float) -> Array:
    """The same with any one ridge left in."""
    shift = wanted - clients * ridge
    return np.linalg.inv(total + shift * identity(total)) @ total @ head


# FedHiP (arXiv 2508.04470).


def recursion(clients: Sequence[Pair]) -> Pair:
    """S_k = S_k-1 + C_k and M_k = M_k-1 + S_k^-1 C_k (L_k - M_k-1)."""
    total, head = np.zeros_like(clients[0][0]), np.zeros_like(clients[0][1])
    for own, own_head in clients:
        total = total + own
        head = head + np.linalg.inv(total) @ own @ (own_head - head)
    return total, head


def personal(shared: Pair, own: Pair, *, clients: int, ridge: float, alpha: float) -> Array:
    """P_k = (S - (K-1) ridge I + alpha G_k)^-1 (S M + alpha b_k)."""
    (total, head), (own_total, own_head) = shared, own
    eye = identity(total)
    gram = own_total - ridge * eye
    left = total - (clients - 1) * ridge * eye + alpha * gram
    return np.linalg.inv(left) @ (total @ head + alpha * own_total @ own_head)


# APFL, the analytic one (arXiv 2508.10732).


def primary(clients: Sequence[Pair], ridge: float) -> Array:
    """Equations 4 to 10, for clients' primary features and labels."""
    total, head = absolute_aggregation([local(*client, ridge) for client in clients])
    left = total - (len(clients) - 1) * ridge * identity(total)
    return np.linalg.inv(left) @ total @ head


def refinement(
    primary_features: Array, own_features: Array, labels: Array, shared: Array, ridge: float
) -> Array:
    """Equations 12 and 13."""
    _, head = local(own_features, labels - primary_features @ shared, ridge)
    return head


def prediction(
    primary_features: Array, own_features: Array, shared: Array, own: Array, balance: float
) -> Array:
    """Equation 14."""
    return primary_features @ shared + balance * own_features @ own
