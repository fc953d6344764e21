//! The routed experts of a model: one store for the decoder layers, another for the multi-token-prediction layer.
//!
//! A store has one slot size, and the prediction layer's records are larger (int8 beside int4), so that a common store
//! would waste almost half of every slot. The second store takes no memory before that layer first runs; it then holds
//! as many slots as the layer chooses experts for a token.

use std::sync::{Arc, OnceLock};

use colibri_store::budget::ScaleMode;
use colibri_store::error::StoreError;
use colibri_store::expert::{ExpertStats, ExpertStore, ExpertTable, PolicyEntry};
use colibri_store::source::Source;

use crate::config::{Control, Phase, Watch};

/// How stores are made: from where, by which policy, with how many reading threads.
pub struct StoreSettings {
    /// Where the bytes come from.
    pub source: Arc<dyn Source>,
    /// Which expert makes room.
    pub policy: &'static PolicyEntry,
    /// Threads that read.
    pub io_workers: usize,
}

impl StoreSettings {
    fn open(&self, table: ExpertTable, slots: usize) -> Result<ExpertStore, StoreError> {
        ExpertStore::new(Arc::clone(&self.source), table, slots, (self.policy.build)(), self.io_workers)
    }
}

/// The routed experts of all layers.
pub struct Experts {
    decoder: ExpertStore,
    prediction: Option<Prediction>,
}

struct Prediction {
    settings: StoreSettings,
    table: ExpertTable,
    layer: u32,
    slots: usize,
    store: OnceLock<ExpertStore>,
}

impl Experts {
    /// Opens the store of the decoder layers with `slots` slots. `prediction` is the layer number and the table of the
    /// prediction layer, with the number of experts that it chooses for a token. Where `scales` says that scales stay in
    /// memory, those of the decoder layers are read here; `watch` follows that.
    ///
    /// # Errors
    /// The slots cannot be allocated, an expert cannot be used in one, scales cannot be read, or the watcher says stop.
    pub fn open(
        settings: StoreSettings,
        mut table: ExpertTable,
        slots: usize,
        prediction: Option<(u32, ExpertTable, usize)>,
        scales: ScaleMode,
        watch: &dyn Watch,
    ) -> Result<Self, StoreError> {
        if scales == ScaleMode::Resident {
            let mut progress = |done, total| watch.progress(Phase::Load, done, total) == Control::Continue;
            table.hold_scales(settings.source.as_ref(), &mut progress)?;
        }
        let decoder = settings.open(table, slots)?;
        let prediction = prediction.map(|(layer, table, slots)| Prediction {
            settings,
            table,
            layer,
            slots,
            store: OnceLock::new(),
        });
        Ok(Self { decoder, prediction })
    }

    /// The store that holds the experts of `layer`.
    ///
    /// # Errors
    /// As [`Self::open`], when the prediction layer runs for the first time.
    pub fn of_layer(&self, layer: u32) -> Result<&ExpertStore, StoreError> {
        let Some(prediction) = self.prediction.as_ref().filter(|prediction| prediction.layer == layer) else {
            return Ok(&self.decoder);
        };
        if let Some(store) = prediction.store.get() {
            return Ok(store);
        }
        let store = prediction.settings.open(prediction.table.clone(), prediction.slots)?;
        Ok(prediction.store.get_or_init(|| store))
    }

    /// Hits, misses and bytes of the decoder layers.
    #[must_use]
    pub fn stats(&self) -> ExpertStats {
        self.decoder.stats()
    }
}
