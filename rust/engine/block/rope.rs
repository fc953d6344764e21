//! Rotary position embedding (arXiv 2104.09864) in the layout that the model's spec names.

use colibri_kernels::ops::RopeTable;

use crate::spec::RopeLayout;

/// Rotates `x` (`[table.dim()]`) in place.
pub fn rotate(table: &RopeTable, layout: RopeLayout, position: usize, x: &mut [f32]) {
    match layout {
        RopeLayout::Interleaved => table.rotate_interleaved(position, x),
        RopeLayout::HalfSplit => table.rotate_half(position, x),
    }
}
