//! Token embedding: rows of a matrix, decoded to f32.

use colibri_kernels::format::decode_row;
use colibri_kernels::matrix::MatrixView;

/// Writes the embeddings of `tokens` to `out` (`[tokens.len(), embedding.cols()]`). Tokens are checked by the session.
pub fn embed(embedding: &MatrixView<'_>, tokens: &[u32], out: &mut [f32]) {
    for (token, row) in tokens.iter().zip(out.chunks_mut(embedding.cols())) {
        decode_row(embedding, *token as usize, row);
    }
}
