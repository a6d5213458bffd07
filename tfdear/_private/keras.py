# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Every private name of Keras that tfdear uses, each with its reason; see [Note: Seams].

Every name has an entry here; to wrap it, add a function in `tfdear.integrations.keras`.
"""

from functools import partial

from tfdear._private import seams

REGISTRY = seams.Registry("Keras", "keras>=3.10,<3.16", tested=("3.10.0", "3.15.1"))

_adapter = partial(REGISTRY.name, "keras.src.trainers.data_adapters.generator_data_adapter")
_backup = partial(REGISTRY.name, "keras.src.callbacks.backup_and_restore")
_base_optimizer = partial(REGISTRY.name, "keras.src.optimizers.base_optimizer")
_callbacks = partial(REGISTRY.name, "keras.src.callbacks.callback_list")
_dataset = partial(REGISTRY.name, "keras.src.trainers.data_adapters.tf_dataset_adapter")
_loss = partial(REGISTRY.name, "keras.src.losses.loss")
_loss_scale = partial(REGISTRY.name, "keras.src.optimizers.loss_scale_optimizer")
_optimizer = partial(REGISTRY.name, "keras.src.backend.tensorflow.optimizer")
_saving = partial(REGISTRY.name, "keras.src.saving.saving_lib")
_trainer = partial(REGISTRY.name, "keras.src.backend.tensorflow.trainer")

# Which strategy a model belongs to, also while `distribute_strategy` is not set up.
_trainer("TensorFlowTrainer.__init__", sets="_distribute_strategy")

# Builds a model from a first batch, which it discards.
MAYBE_SYMBOLIC_BUILD = _trainer(
    "TensorFlowTrainer._maybe_symbolic_build", "(self, iterator=None, data_batch=None)"
)

# Which strategy an optimizer was created in.
_optimizer("TFOptimizer.__init__", sets="_distribution_strategy")

# Scale a mean loss by the number of replicas, and take that back for logs.
SCALE_LOSS = _loss("scale_loss_for_distribution", "(value)")
UNSCALE_LOSS = _loss("unscale_loss_for_distribution", "(value)")

# Reduces the losses of examples, and adds up what a layer adds for each row.
REDUCE_VALUES = _loss(
    "reduce_values", "(values, sample_weight=None, reduction='sum_over_batch_size')"
)
AGGREGATE_ADDITIONAL_LOSS = _trainer("TensorFlowTrainer._aggregate_additional_loss", "(self, loss)")

# Makes a metric, whose `result` is that of all ranks.
METRIC_INIT = REGISTRY.name(
    "keras.src.metrics.metric", "Metric.__init__", "(self, dtype=None, name=None)"
)

# Logs the mean of losses.
UPDATE_MEAN = REGISTRY.name(
    "keras.src.metrics.reduction_metrics", "Mean.update_state", "(self, values, sample_weight=None)"
)

# Sums gradients over replicas.
ALL_REDUCE_SUM_GRADIENTS = _optimizer(
    "TFOptimizer._all_reduce_sum_gradients", "(self, grads_and_vars)"
)

# Concatenates the replicas' rows in `predict`.
REDUCE_PER_REPLICA = _trainer("reduce_per_replica", "(values, strategy, reduction)")

# Pass a whole batch to `strategy.run`.
TRAIN_ON_BATCH = _trainer(
    "TensorFlowTrainer.train_on_batch",
    "(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False)",
)
TEST_ON_BATCH = _trainer(
    "TensorFlowTrainer.test_on_batch", "(self, x, y=None, sample_weight=None, return_dict=False)"
)
PREDICT_ON_BATCH = _trainer("TensorFlowTrainer.predict_on_batch", "(self, x)")

# Begins epochs, which caches of examples count by.
FIT = _trainer("TensorFlowTrainer.fit")

# Distributes the data of `fit`, `evaluate` and `predict`.
EPOCH_ITERATOR_INIT = _trainer(
    "TFEpochIterator.__init__", "(self, distribute_strategy=None, *args, **kwargs)"
)
_trainer("TFEpochIterator.__init__", sets="_distributed_dataset")

# The adapter that reads a generator, and its pipeline.
GENERATOR_DATA_ADAPTER = _adapter("GeneratorDataAdapter")
_adapter("GeneratorDataAdapter.get_tf_dataset", "(self)")

# Counts the batches of a dataset, which for a rank are those of the distributed one.
TF_DATASET_ADAPTER = _dataset("TFDatasetAdapter")
_dataset("TFDatasetAdapter.__init__", sets="_dataset")
_dataset("TFDatasetAdapter.num_batches")
for _attribute in ("_num_batches", "steps_per_epoch"):
    REGISTRY.name("keras.src.trainers.epoch_iterator", "EpochIterator.__init__", sets=_attribute)
# Counts the steps of an epoch.
ENUMERATE_STEPS = REGISTRY.name(
    "keras.src.trainers.epoch_iterator", "EpochIterator._enumerate_iterator", "(self)"
)

# Looks for overflows before gradients are summed, and changes the loss scale.
CHECK_FINITE = _loss_scale("LossScaleOptimizer.check_finite", "(self, grads)")
HANDLE_FINITE_GRADS = _loss_scale(
    "LossScaleOptimizer._stateful_handle_finite_grads", "(self, grads, trainable_variables)"
)
HANDLE_NON_FINITE_GRADS = _loss_scale(
    "LossScaleOptimizer._stateful_handle_non_finite_grads", "(self)"
)

# Where gradients are accumulated, clipped, and constraints applied.
APPLY = _base_optimizer("BaseOptimizer.apply", "(self, grads, trainable_variables=None)")
INCREMENT_ACCUMULATORS = _optimizer(
    "TFOptimizer._backend_increment_gradient_accumulators", "(self, grads, acc_grads)"
)
_base_optimizer("BaseOptimizer.build", sets="_accumulated_gradients")
OVERWRITE_WITH_GRADIENTS = _base_optimizer(
    "BaseOptimizer._overwrite_variables_directly_with_gradients", "(self, grads, vars)"
)
CLIP_GRADIENTS = _base_optimizer("BaseOptimizer._clip_gradients", "(self, grads)")

# Shrinks weights before they are updated.
APPLY_WEIGHT_DECAY = _optimizer("TFOptimizer._apply_weight_decay", "(self, variables)")

# Sums clipped gradients over replicas, and updates variables by the sums.
BACKEND_UPDATE_STEP = _optimizer(
    "TFOptimizer._backend_update_step", "(self, grads, trainable_variables, learning_rate)"
)
_optimizer(
    "TFOptimizer._distributed_tf_update_step",
    "(self, distribution, grads_and_vars, learning_rate)",
)

# Hold a file's entries, save and load those of an optimizer, tell whether the file fits in memory.
H5_STORE = _saving("H5IOStore")
_saving("H5IOStore.__init__", sets="_h5_entry_group")
SAVE_OPTIMIZER = _base_optimizer("BaseOptimizer.save_own_variables", "(self, store)")
LOAD_OPTIMIZER = _base_optimizer("BaseOptimizer.load_own_variables", "(self, store)")
IS_MEMORY_SUFFICIENT = _saving("is_memory_sufficient", "(model)")

# Write a layer by the name of its class, and make it from what a file says.
SERIALIZE_WITH_PUBLIC_CLASS = REGISTRY.name(
    "keras.src.saving.serialization_lib",
    "serialize_with_public_class",
    "(cls, inner_config=None)",
)
TO_SNAKE_CASE = REGISTRY.name("keras.src.utils.naming", "to_snake_case", "(name)")
DESERIALIZE = REGISTRY.name(
    "keras.src.saving.serialization_lib",
    "deserialize_keras_object",
    "(config, custom_objects=None, safe_mode=True, **kwargs)",
)

# Make and look up the table of an embedding layer.
_embedding = partial(REGISTRY.name, "keras.src.layers.core.embedding")
EMBEDDING_BUILD = _embedding("Embedding.build", "(self, input_shape=None)")
EMBEDDING_CALL = _embedding("Embedding.call", "(self, inputs)")
_embedding("Embedding.build", sets="_embeddings")

# Makes an optimizer's slot; averages the variables of a model.
ADD_VARIABLE_FROM_REFERENCE = _optimizer(
    "TFOptimizer.add_variable_from_reference",
    "(self, reference_variable, name=None, initializer='zeros')",
)
UPDATE_MOVING_AVERAGES = _base_optimizer(
    "BaseOptimizer._update_model_variables_moving_average", "(self, trainable_variables)"
)
OVERWRITE_WITH_AVERAGES = _optimizer(
    "TFOptimizer._overwrite_model_variables_with_average_value", "(self, trainable_variables)"
)
_base_optimizer("BaseOptimizer.build", sets="_model_variables_moving_average")

# The variables of an optimizer, and their order.
_base_optimizer("BaseOptimizer._get_variable_index", "(self, variable)")
_base_optimizer("BaseOptimizer.__init__", sets="_trainable_variables")

# Makes metrics and optimizer.
COMPILE = REGISTRY.name(
    "keras.src.trainers.trainer",
    "Trainer.compile",
    "(self, optimizer='rmsprop', loss=None, loss_weights=None, metrics=None, "
    "weighted_metrics=None, run_eagerly=False, steps_per_execution=1, jit_compile='auto', "
    "auto_scale_loss=True)",
)

# The start of `fit`, `evaluate` and `predict`, when a model has all its variables.
MAKE_TRAIN_FUNCTION = _trainer("TensorFlowTrainer.make_train_function", "(self, force=False)")
MAKE_TEST_FUNCTION = _trainer("TensorFlowTrainer.make_test_function", "(self, force=False)")
MAKE_PREDICT_FUNCTION = _trainer("TensorFlowTrainer.make_predict_function", "(self, force=False)")

# The events of callbacks at which variables are compared over the ranks.
SET_MODEL = _callbacks("CallbackList.set_model", "(self, model)")
ON_TRAIN_BEGIN = _callbacks("CallbackList.on_train_begin", "(self, logs=None)")
ON_TRAIN_BATCH_END = _callbacks("CallbackList.on_train_batch_end", "(self, batch, logs=None)")
ON_TRAIN_END = _callbacks("CallbackList.on_train_end", "(self, logs=None)")
ON_TEST_BEGIN = _callbacks("CallbackList.on_test_begin", "(self, logs=None)")

# Creates the variables with which Keras counts.
INITIALIZE_VARIABLE = REGISTRY.name(
    "keras.src.backend.tensorflow.core", "Variable._initialize", "(self, value)"
)

# Write and read a model in one file.
SAVE_MODEL = _saving("save_model", "(model, filepath, weights_format='h5', zipped=True)")
SAVE_WEIGHTS = _saving(
    "save_weights_only", "(model, filepath, max_shard_size=None, objects_to_skip=None)"
)
SAVE_HDF5 = REGISTRY.name(
    "keras.src.legacy.saving.legacy_h5_format",
    "save_model_to_hdf5",
    "(model, filepath, overwrite=True, include_optimizer=True)",
)
LOAD_MODEL = _saving("load_model", "(filepath, custom_objects=None, compile=True, safe_mode=True)")
LOAD_WEIGHTS = _saving(
    "load_weights_only", "(model, filepath, skip_mismatch=False, objects_to_skip=None)"
)

# Writes the folder of a SavedModel.
EXPORT_SAVED_MODEL = REGISTRY.name(
    "keras.src.export",
    "export_saved_model",
    "(model, filepath, verbose=None, input_signature=None, **kwargs)",
)

# Makes the folders of callbacks.
MAKE_FOLDERS = REGISTRY.name("keras.src.utils.file_utils", "makedirs", "(path)")

# Writes and removes the folder of `BackupAndRestore`.
BACK_UP = _backup("BackupAndRestore._save_model", "(self)")
REMOVE_BACKUP = _backup("BackupAndRestore.on_train_end", "(self, logs=None)")
_backup("BackupAndRestore.__init__", sets="_training_metadata_path")
_backup("BackupAndRestore.__init__", sets="_weights_path")
# Where in its epochs training is.
_backup("BackupAndRestore.__init__", sets="_current_epoch")
_backup("BackupAndRestore.__init__", sets="_last_batch_seen")
REGISTRY.name("keras.src.trainers.trainer", "Trainer.__init__", sets="_initial_epoch")

# Modules whose functions write checkpoints.
WRITERS = ("keras.src.saving", "keras.src.legacy.saving", "keras.src.export")
for _package, _, _module in (writer.rpartition(".") for writer in WRITERS):
    REGISTRY.name(_package, _module)

# Says which elements of a layer's output are padding.
SET_KERAS_MASK = REGISTRY.name("keras.src.backend.common.masking", "set_keras_mask", "(x, mask)")

# The layers in a layer, and where Keras keeps a variable's value.
FLATTEN_LAYERS = REGISTRY.name(
    "keras.src.layers.layer", "Layer._flatten_layers", "(self, include_self=True, recursive=True)"
)
INITIALIZE_VARIABLE = REGISTRY.name(
    "keras.src.backend.tensorflow.core", "Variable._initialize", "(self, value)"
)
REGISTRY.name("keras.src.backend.tensorflow.core", "Variable._initialize", sets="_value")
