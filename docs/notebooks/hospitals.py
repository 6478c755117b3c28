# %% [markdown]
# # Hospitals with tables, and a request for deletion
#
# Three hospitals have a table of patients each. They solve a model together; then one patient asks to be deleted. The data are drawn
# here: no real patient is in them.

# %%
import numpy as np

import fedgram as fg

rng = np.random.default_rng(0)
count = 900
hospital = rng.choice(["north", "south", "west"], size=count, p=[0.6, 0.3, 0.1])
age = rng.normal(62, 14, size=count)
pressure = rng.normal(135, 18, size=count) + 6 * (hospital == "west")
stays = rng.poisson(1.5, size=count)
risk = (age - 62) / 14 + 0.8 * (pressure - 135) / 18 + 0.9 * (stays - 1.5)
readmitted = np.where(risk + rng.normal(size=count) > 0.8, "readmitted", "well")
columns = np.column_stack(
    [age, pressure, stays, age * stays, age**2, pressure**2, stays**2, age * pressure]
)

# %% [markdown]
# ## Columns of one scale
#
# Columns have units of their own. `standardize=True` computes mean and deviation of each one from the
# training rows of all hospitals at once: the same, to the bit, as the sum of what each hospital sums.

# %%
data = fg.Dataset(columns, readmitted, clients=hospital, standardize=True)
federated = fg.federate(data)
results = fg.run(["local", "afl", "fedhip"], federated)
for result in results:
    print(f"{result.method:8} {result.accuracy['client_mean']:.3f} {result.shared_digest}")

# %% [markdown]
# ## What a hospital sends
#
# Sums over its patients: a matrix of products of features, sums by class, a count. They are integers, so they can be added and
# subtracted without any loss.

# %%
sums = {
    site.id: fg.Statistics.of(site.train.features, site.train.labels) for site in federated.members
}
total = sum(sums.values(), fg.Statistics.zero())
print({name: one.count for name, one in sums.items()}, total.count)
assert total.count == sum(one.count for one in sums.values())

# %% [markdown]
# ## A patient asks to be deleted
#
# The hospital makes the sums of this one patient, and they are subtracted. What is left is, to the bit, the total of a federation that
# never had the patient: the digests are equal.

# %%
north = next(site for site in federated.members if site.id == "north")
patient = north.train.take([0])
without = total - fg.Statistics.of(patient.features, patient.labels)

rest = north.train.take(np.arange(1, len(north.train)))
never = fg.Statistics.of(rest.features, rest.labels) + sums["south"] + sums["west"]
print(without.digest())
assert without.digest() == never.digest() != total.digest()

# %% [markdown]
# The model is solved again from the total that is left.

# %%
before, after = (fg.Linear.of(one, ridge=10.0) for one in (total, without))
print("largest change of a weight:", float(np.abs(after.weights - before.weights).max()))
assert not np.array_equal(before.weights, after.weights)

# %% [markdown]
# ## What this does not delete
#
# - Models that were handed out before the request still contain the patient: replace them.
# - Mean and deviation of the columns were computed with the patient. They stay public numbers of the federation until they are agreed
#   on again.
# - A ledger keeps account of all this between real hospitals, with a certificate of the deletion that an auditor can check:
#   the page "A federation by files alone".
