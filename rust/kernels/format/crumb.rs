//! What the formats with two bits of a code in a plane share: four to a byte, element `i` at bits `2 (i mod 4)` of
//! byte `i / 4`.

/// The two bits of element `index`.
#[inline(always)]
pub(super) fn bits(plane: &[u8], index: usize) -> u8 {
    (plane[index / 4] >> (2 * (index % 4))) & 3
}
