//! Integer codes as they lie in a row: one small type for each width.
//!
//! Owns: [`Codes`], all that kernels know of a width, and [`Words`], the vectors of 16-bit lanes in which every
//! instruction set unpacks it; so a width is written down once for all sets.
//! Must hold: the lanes of a loaded vector do not mix while planes are taken from it, so that vectors of several
//! rows can be transposed in between.

use crate::format::{int2_row, int3_g64, nibble};

/// How codes of one width are stored.
pub(crate) trait Codes {
    /// What is added to a code before it is stored; 0 means signed bytes.
    const OFFSET: i32;
    /// Bytes of a block of 64 codes.
    const BLOCK_BYTES: usize;
    /// Whether unpacked codes come in plane order (see [`crate::act`]), else in column order.
    const PLANES: bool;
    /// How many vectors [`Codes::load`] fills. If all four, they are the planes.
    const LOADED: usize;
    /// [`Codes::eight`] starts at a multiple of this many columns.
    const ALIGNMENT: usize;

    /// The code at a column.
    fn code(codes: &[u8], col: usize) -> i32;

    /// Sum of `code * v` over the columns from `first` on; exact for up to 1024 columns, of int4 and less for 8192.
    #[inline(always)]
    fn dot(codes: &[u8], first: usize, v: &[i16]) -> i32 {
        (first..).zip(v).map(|(col, v)| Self::code(codes, col) * i32::from(*v)).sum()
    }

    /// The stored bytes of [`Words::BLOCKS`] blocks, in the first [`Codes::LOADED`] vectors.
    ///
    /// # Safety
    /// The instructions of `W`; as many blocks at `blocks`.
    unsafe fn load<W: Words>(blocks: *const u8) -> [W; 4];

    /// The stored codes: plane `k`, or with column order a quarter of the columns, in vector `k`.
    ///
    /// # Safety
    /// The instructions of `W`.
    unsafe fn planes<W: Words>(loaded: [W; 4]) -> [W; 4];

    /// Eight stored codes from column `col` on, a multiple of [`Codes::ALIGNMENT`]; `None` for signed bytes.
    ///
    /// # Safety
    /// The codes lie in the row at `codes`.
    unsafe fn eight(codes: *const u8, col: usize) -> Option<Eight>;
}

/// Eight stored codes; the one of lane `i` is `(low >> bits i) mod 2^bits + 2^bits ((high >> i) mod 2)`.
#[derive(Clone, Copy)]
pub(crate) struct Eight {
    pub(crate) low: u32,
    pub(crate) bits: i32,
    pub(crate) high: u32,
}

/// A vector of 16-bit lanes, sixteen for each block of 64 columns.
///
/// # Safety
/// Every function needs the instructions of the type, and the loads need what they read to exist.
pub(crate) trait Words: Copy {
    /// Number of lanes.
    const LANES: usize;
    /// Zeros.
    unsafe fn zero() -> Self;
    /// The 32 bytes of each block, blocks one after another.
    unsafe fn words(blocks: *const u8) -> Self;
    /// Sixteen bytes of each block, each in a lane of its own; blocks lie `stride` bytes apart.
    unsafe fn bytes(blocks: *const u8, stride: usize) -> Self;
    /// The nibbles of eight bytes of each block, low nibble first, each in the low bits of a lane; bits 4..8 and
    /// 12..16 of a lane are not specified, the others are 0. Blocks lie `stride` bytes apart.
    unsafe fn nibbles(blocks: *const u8, stride: usize) -> Self;
    /// As many signed bytes as there are lanes.
    unsafe fn signed(bytes: *const u8) -> Self;
    /// Each lane shifted right, zeros shifted in.
    unsafe fn right(self, bits: i32) -> Self;
    /// Each lane shifted left.
    unsafe fn left(self, bits: i32) -> Self;
    /// Each lane `& mask`.
    unsafe fn and(self, mask: i16) -> Self;
    /// Lane by lane `|`.
    unsafe fn or(self, other: Self) -> Self;
    /// Each byte, 0..=15, replaced by that byte of the table.
    unsafe fn lookup(self, table: [u8; 16]) -> Self;
}

/// int8 codes.
pub(crate) struct Byte;

impl Codes for Byte {
    const OFFSET: i32 = 0;
    const BLOCK_BYTES: usize = 64;
    const PLANES: bool = false;
    const LOADED: usize = 4;
    const ALIGNMENT: usize = 1;

    #[inline(always)]
    fn code(codes: &[u8], col: usize) -> i32 {
        i32::from(codes[col].cast_signed())
    }

    #[inline(always)]
    fn dot(codes: &[u8], first: usize, v: &[i16]) -> i32 {
        codes[first..].iter().zip(v).map(|(code, v)| i32::from(code.cast_signed()) * i32::from(*v)).sum()
    }

    #[inline(always)]
    unsafe fn load<W: Words>(blocks: *const u8) -> [W; 4] {
        // SAFETY: by the caller's promise.
        unsafe {
            let (a, b) = (W::signed(blocks), W::signed(blocks.add(W::LANES)));
            [a, b, W::signed(blocks.add(2 * W::LANES)), W::signed(blocks.add(3 * W::LANES))]
        }
    }

    #[inline(always)]
    unsafe fn planes<W: Words>(loaded: [W; 4]) -> [W; 4] {
        loaded
    }

    #[inline(always)]
    unsafe fn eight(_codes: *const u8, _col: usize) -> Option<Eight> {
        None
    }
}

/// The four nibbles of each lane.
///
/// # Safety
/// The instructions of `W`.
#[inline(always)]
unsafe fn nibble_planes<W: Words>(words: W) -> [W; 4] {
    // SAFETY: by the caller's promise.
    unsafe { [words.and(15), words.right(4).and(15), words.right(8).and(15), words.right(12)] }
}

/// int4 codes, two per byte: seen as 16-bit words, plane `k` lies at bits `4 k`.
pub(crate) struct Nibble;

impl Codes for Nibble {
    const OFFSET: i32 = nibble::OFFSET;
    const BLOCK_BYTES: usize = 32;
    const PLANES: bool = true;
    const LOADED: usize = 1;
    const ALIGNMENT: usize = 2;

    #[inline(always)]
    fn code(codes: &[u8], col: usize) -> i32 {
        nibble::code(codes, col)
    }

    #[inline(always)]
    fn dot(codes: &[u8], first: usize, v: &[i16]) -> i32 {
        let (odd, even) = v.split_at((first % 2).min(v.len()));
        let mut sum: i32 = odd.iter().map(|v| nibble::code(codes, first) * i32::from(*v)).sum();
        let start = first + odd.len();
        let (pairs, last) = even.as_chunks::<2>();
        for (byte, v) in codes[start / 2..].iter().zip(pairs) {
            let (low, high) = (i32::from(byte & 15), i32::from(byte >> 4));
            sum += (low - nibble::OFFSET) * i32::from(v[0]) + (high - nibble::OFFSET) * i32::from(v[1]);
        }
        for v in last {
            sum += nibble::code(codes, start + 2 * pairs.len()) * i32::from(*v);
        }
        sum
    }

    #[inline(always)]
    unsafe fn load<W: Words>(blocks: *const u8) -> [W; 4] {
        // SAFETY: by the caller's promise.
        unsafe { [W::words(blocks), W::zero(), W::zero(), W::zero()] }
    }

    #[inline(always)]
    unsafe fn planes<W: Words>(loaded: [W; 4]) -> [W; 4] {
        // SAFETY: by the caller's promise.
        unsafe { nibble_planes(loaded[0]) }
    }

    #[inline(always)]
    unsafe fn eight(codes: *const u8, col: usize) -> Option<Eight> {
        // SAFETY: eight codes are four bytes.
        let low = unsafe { codes.add(col / 2).cast::<[u8; 4]>().read() };
        Some(Eight { low: u32::from_le_bytes(low), bits: 4, high: 0 })
    }
}

/// int2 codes, four per byte: with a byte in each lane, plane `k` lies at bits `2 k`.
pub(crate) struct Crumb;

impl Codes for Crumb {
    const OFFSET: i32 = int2_row::OFFSET;
    const BLOCK_BYTES: usize = 16;
    const PLANES: bool = true;
    const LOADED: usize = 1;
    const ALIGNMENT: usize = 4;

    #[inline(always)]
    fn code(codes: &[u8], col: usize) -> i32 {
        int2_row::code(codes, col)
    }

    #[inline(always)]
    unsafe fn load<W: Words>(blocks: *const u8) -> [W; 4] {
        // SAFETY: by the caller's promise.
        unsafe { [W::bytes(blocks, Self::BLOCK_BYTES), W::zero(), W::zero(), W::zero()] }
    }

    #[inline(always)]
    unsafe fn planes<W: Words>([bytes, ..]: [W; 4]) -> [W; 4] {
        // SAFETY: by the caller's promise.
        unsafe { [bytes.and(3), bytes.right(2).and(3), bytes.right(4).and(3), bytes.right(6)] }
    }

    #[inline(always)]
    unsafe fn eight(codes: *const u8, col: usize) -> Option<Eight> {
        // SAFETY: eight codes are two bytes.
        let low = unsafe { codes.add(col / 4).cast::<[u8; 2]>().read() };
        Some(Eight { low: u32::from(u16::from_le_bytes(low)), bits: 2, high: 0 })
    }
}

/// int3 codes: in each block the two low bits as in [`Crumb`], then the third bits, of which plane `k` lies at bit
/// `k` of every nibble. Both are spread to nibbles, and unpack as [`Nibble`] from there on.
pub(crate) struct Triple;

/// Two pairs of bits, each in a nibble of its own.
const SPREAD_PAIRS: [u8; 16] =
    [0x00, 0x01, 0x02, 0x03, 0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x22, 0x23, 0x30, 0x31, 0x32, 0x33];
/// Two bits, each as the third bit of a nibble of its own.
const SPREAD_THIRDS: [u8; 16] = [0x00, 0x04, 0x40, 0x44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

impl Codes for Triple {
    const OFFSET: i32 = int3_g64::OFFSET;
    const BLOCK_BYTES: usize = int3_g64::GROUP_BYTES;
    const PLANES: bool = true;
    const LOADED: usize = 1;
    const ALIGNMENT: usize = 8;

    #[inline(always)]
    fn code(codes: &[u8], col: usize) -> i32 {
        int3_g64::code(codes, col)
    }

    #[inline(always)]
    unsafe fn load<W: Words>(blocks: *const u8) -> [W; 4] {
        // SAFETY: by the caller's promise; the third bits follow the low ones in each block.
        unsafe {
            let low = W::bytes(blocks, Self::BLOCK_BYTES);
            let low = low.or(low.left(4)).and(0x0f0f).lookup(SPREAD_PAIRS);
            let high = W::nibbles(blocks.add(int3_g64::HIGH), Self::BLOCK_BYTES);
            let high = high.or(high.left(6)).and(0x0303).lookup(SPREAD_THIRDS);
            [low.or(high), W::zero(), W::zero(), W::zero()]
        }
    }

    #[inline(always)]
    unsafe fn planes<W: Words>(loaded: [W; 4]) -> [W; 4] {
        // SAFETY: by the caller's promise.
        unsafe { nibble_planes(loaded[0]) }
    }

    #[inline(always)]
    unsafe fn eight(codes: *const u8, col: usize) -> Option<Eight> {
        let (block, col) = (col / 64 * Self::BLOCK_BYTES, col % 64);
        // SAFETY: eight codes are two bytes of low bits and one of third bits.
        unsafe {
            let low = codes.add(block + col / 4).cast::<[u8; 2]>().read();
            let high = codes.add(block + int3_g64::HIGH + col / 8).read();
            Some(Eight { low: u32::from(u16::from_le_bytes(low)), bits: 2, high: u32::from(high) })
        }
    }
}
