# %% [markdown]
# # Digits in five minutes
#
# Twenty clients hold images of digits, each with its own mix of classes. They get a model each, from sums.
# The data come with fedgram; nothing is downloaded.

# %%
import fedgram as fg

digits = fg.load_dataset("digits")
federated = fg.federate(digits, clients=20, partition="dirichlet", alpha=0.1)
federated

# %% [markdown]
# ## Alone, together, personal
#
# `local` is each client alone. `afl` is one model for all, from one exchange of sums. `apfl` adds a part of the client's own.

# %%
results = fg.run(["local", "afl", "apfl"], federated)
results

# %% [markdown]
# The figure shows all clients, from the worst to the best.

# %%
figure = results.plot()
figure.save("digits.svg")
figure

# %% [markdown]
# ## The same model, however the samples are spread
#
# The digest is that of the sums behind the shared model. It does not change with the partition, not by one bit.

# %%
digests = {
    fg.run("afl", fg.federate(digits, clients=20, partition=partition)).shared_digest
    for partition in ("iid", "dirichlet", "shards")
}
assert len(digests) == 1
digests

# %% [markdown]
# ## New samples
#
# A client's model takes arrays. The probabilities are calibrated: of the predictions with 80 %, about 80 % are correct.

# %%
apfl = results.of("apfl")[0]
name = next(iter(apfl.models))
model = apfl.models[name]
print(name, model.predict(digits.x[:5]), model.predict_proba(digits.x[:5]).max(axis=1).round(2))
assert model.predict(digits.x[:5]).shape == (5,)
