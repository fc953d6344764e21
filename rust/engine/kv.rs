//! What a session remembers of its tokens: for latent attention the normed latent and the one rotated key of each
//! token (absorbed form, so no per-head keys or values), and the index keys of layers with an indexer.
//!
//! Must hold: every layer holds the same number of positions between two forward passes; memory is reserved for the
//! whole context at once and touched only as it is used.

use colibri_store::error::StoreError;
use colibri_store::memory;

use crate::spec::{Indexing, LayerSpec, Mixer, MlaSpec, ModelSpec};

/// The state of one layer.
#[derive(Clone, Debug)]
pub enum LayerCache {
    /// Of latent attention.
    Mla(MlaCache),
}

/// The state of latent attention.
#[derive(Clone, Debug)]
pub struct MlaCache {
    row: usize,
    index_row: usize,
    keys: Vec<f32>,       // [positions, latent_rank + rope_dim]
    index_keys: Vec<f32>, // [positions, index head_dim]
}

impl MlaCache {
    fn new(spec: &MlaSpec, capacity: usize) -> Self {
        let (row, index_row) = row_widths(spec);
        Self { row, index_row, keys: reserved(row, capacity), index_keys: reserved(index_row, capacity) }
    }

    /// Makes room for `rows` more positions.
    fn reserve(&mut self, rows: usize) -> Result<(), StoreError> {
        memory::reserve(&mut self.keys, rows.saturating_mul(self.row))?;
        memory::reserve(&mut self.index_keys, rows.saturating_mul(self.index_row))
    }

    /// Appends a position and lends it for writing: latent, then rotated key.
    pub fn push(&mut self) -> &mut [f32] {
        let start = self.keys.len();
        self.keys.resize(start + self.row, 0.0);
        &mut self.keys[start..]
    }

    /// Appends a position's index key and lends it for writing.
    pub fn push_index(&mut self) -> &mut [f32] {
        let start = self.index_keys.len();
        self.index_keys.resize(start + self.index_row, 0.0);
        &mut self.index_keys[start..]
    }

    /// Latent, then rotated key, of a position.
    #[must_use]
    pub fn key(&self, position: usize) -> &[f32] {
        &self.keys[position * self.row..][..self.row]
    }

    /// Index key of a position.
    #[must_use]
    pub fn index_key(&self, position: usize) -> &[f32] {
        &self.index_keys[position * self.index_row..][..self.index_row]
    }
}

/// An empty buffer with room for the whole context, so that it never moves; where so much address space cannot be had,
/// one that grows.
fn reserved(row: usize, capacity: usize) -> Vec<f32> {
    let mut buffer = Vec::new();
    // A refusal costs copies later; what is needed is asked for again before each pass.
    let _ = buffer.try_reserve_exact(row.saturating_mul(capacity));
    buffer
}

/// Values that a layer keeps of each token: latent and rotated key, index key.
fn row_widths(spec: &MlaSpec) -> (usize, usize) {
    let index = match &spec.indexing {
        Indexing::Full(indexer) => indexer.head_dim,
        Indexing::Dense | Indexing::Shared => 0,
    };
    (spec.latent_rank + spec.rope_dim, index)
}

impl LayerCache {
    /// The empty state of a layer, with room for `capacity` positions.
    #[must_use]
    pub fn new(layer: &LayerSpec, capacity: usize) -> Self {
        match &layer.mixer {
            Mixer::Mla(spec) => Self::Mla(MlaCache::new(spec, capacity)),
        }
    }

    /// Makes room for `rows` more positions, so that taking them in cannot fail.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn reserve(&mut self, rows: usize) -> Result<(), StoreError> {
        match self {
            Self::Mla(cache) => cache.reserve(rows),
        }
    }

    /// Forgets all positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        match self {
            Self::Mla(cache) => {
                cache.keys.truncate(len * cache.row);
                cache.index_keys.truncate(len * cache.index_row);
            }
        }
    }
}

/// The state of all decoder layers.
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    len: usize,
    capacity: usize,
}

impl KvCache {
    /// An empty cache with room for `capacity` positions.
    #[must_use]
    pub fn new(spec: &ModelSpec, capacity: usize) -> Self {
        let layers = spec.layers.iter().map(|layer| LayerCache::new(layer, capacity)).collect();
        Self { layers, len: 0, capacity }
    }

    /// Positions that every layer holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions that can be held.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The state of a layer.
    pub fn layer(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }

    /// Makes room for `rows` more positions in every layer.
    ///
    /// # Errors
    /// As [`LayerCache::reserve`].
    pub fn reserve(&mut self, rows: usize) -> Result<(), StoreError> {
        self.layers.iter_mut().try_for_each(|layer| layer.reserve(rows))
    }

    /// Declares that every layer has taken `rows` more positions.
    pub fn commit(&mut self, rows: usize) {
        self.len += rows;
    }

    /// Forgets all positions from `len` on, committed or not.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        for layer in &mut self.layers {
            layer.truncate(self.len);
        }
    }
}

/// Bytes that a session keeps of each token.
#[must_use]
pub fn bytes_per_token(spec: &ModelSpec) -> u64 {
    let of_layer = |layer: &LayerSpec| match &layer.mixer {
        Mixer::Mla(mla) => {
            let (row, index_row) = row_widths(mla);
            (row + index_row) as u64 * size_of::<f32>() as u64
        }
    };
    spec.layers.iter().map(of_layer).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_no_machine_has_is_refused_and_the_cache_stays_as_it_was() {
        let mut cache = MlaCache { row: 3, index_row: 2, keys: reserved(3, usize::MAX), index_keys: Vec::new() };
        assert_eq!(cache.keys.capacity(), 0, "so much address space is not had");
        cache.push().fill(1.0);
        assert_eq!(cache.reserve(usize::MAX).unwrap_err().code(), "ram_budget_too_small");
        cache.reserve(100).unwrap();
        assert!(cache.keys.capacity() >= 303 && cache.index_keys.capacity() >= 200);
        assert_eq!(cache.key(0), [1.0; 3]);
    }
}
