"""Keras with BackupAndRestore and ModelCheckpoint, as its documentation writes them; torch as the backend."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from telling import at, done

out = sys.argv[1]
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.build((None, 8))


class Tell(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        at(8 * self.epoch + batch)


model.fit(
    x,
    y,
    epochs=6,
    verbose=0,
    shuffle="--shuffle" in sys.argv,
    callbacks=[
        keras.callbacks.BackupAndRestore(f"{out}/backup", delete_checkpoint=False),
        keras.callbacks.ModelCheckpoint(f"{out}/best.keras", monitor="loss", save_best_only=True),
        keras.callbacks.CSVLogger(f"{out}/log.csv", append=True),
        Tell(),
    ],
)
done(model.get_weights())
