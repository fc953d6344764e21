//! The way between codes, one signed byte each, and the bytes of the int4, int3 and int2 formats.
//!
//! Must hold: rows start on a byte; the unused codes of a row's last byte are written as 0 bits (int4, int2) or as the
//! code 0 (int3, whose rows are whole groups of 64); they are ignored when read. The bodies work on words of several
//! codes, which compilers turn into vector instructions.

use super::int3_g64::{GROUP, GROUP_BYTES};

/// Four codes, one a byte, with `offset` added to each; the codes are at least `-offset`, at most `127 - offset`.
#[inline(always)]
fn stored_four(codes: &[i8; 4], offset: i8) -> u32 {
    u32::from_le_bytes(codes.map(|code| code.wrapping_add(offset).cast_unsigned()))
}

/// The two low bits of each byte side by side.
#[inline(always)]
fn gather_pairs(word: u32) -> u8 {
    ((word & 3) | ((word >> 6) & 0x0c) | ((word >> 12) & 0x30) | ((word >> 18) & 0xc0)) as u8
}

/// Each pair of bits in a byte of its own.
#[inline(always)]
fn spread_pairs(byte: u32) -> u32 {
    (byte | (byte << 6) | (byte << 12) | (byte << 18)) & 0x0303_0303
}

/// Bit 2 of each byte, side by side in the low half.
#[inline(always)]
fn gather_third(word: u32) -> u32 {
    ((word >> 2) & 1) | ((word >> 9) & 2) | ((word >> 16) & 4) | ((word >> 23) & 8)
}

/// Each of four bits as bit 2 of a byte of its own.
#[inline(always)]
fn spread_third(bits: u32) -> u32 {
    ((bits << 2) | (bits << 9) | (bits << 16) | (bits << 23)) & 0x0404_0404
}

/// int4: codes -8..=7, the even column in the low half of a byte.
#[inline(always)]
pub(crate) fn pack_int4(codes: &[i8], bytes: &mut [u8]) {
    let (pairs, last) = codes.as_chunks::<2>();
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        let word = u16::from_le_bytes(pair.map(|code| code.wrapping_add(8).cast_unsigned()));
        *byte = (word | (word >> 4)) as u8;
    }
    if let (Some(byte), Some(code)) = (bytes.last_mut(), last.first()) {
        *byte = code.wrapping_add(8).cast_unsigned();
    }
}

/// The codes of up to 32 bytes of int4; those past the end of the row are of no use.
#[inline(always)]
pub(crate) fn unpack_int4(bytes: &[u8]) -> [i8; 64] {
    let mut codes = [0i8; 64];
    let (pairs, _) = codes.as_chunks_mut::<2>();
    for (pair, byte) in pairs.iter_mut().zip(bytes) {
        let word = u16::from(*byte);
        *pair = ((word & 0x0f) | ((word & 0xf0) << 4)).to_le_bytes().map(|stored| stored.cast_signed() - 8);
    }
    codes
}

/// int2: codes -2..=1, column `4 j + k` at bits `2 k` of byte `j`.
#[inline(always)]
pub(crate) fn pack_int2(codes: &[i8], bytes: &mut [u8]) {
    let (fours, last) = codes.as_chunks::<4>();
    for (byte, four) in bytes.iter_mut().zip(fours) {
        *byte = gather_pairs(stored_four(four, 2));
    }
    if let (Some(byte), false) = (bytes.last_mut(), last.is_empty()) {
        *byte = last.iter().rev().fold(0, |byte, code| (byte << 2) | code.wrapping_add(2).cast_unsigned());
    }
}

/// int3: codes -4..=3, whole groups; the columns past the end hold the code 0.
#[inline(always)]
pub(crate) fn pack_int3(codes: &[i8], bytes: &mut [u8]) {
    let (groups, last) = codes.as_chunks::<GROUP>();
    let (blocks, _) = bytes.as_chunks_mut::<GROUP_BYTES>();
    let mut blocks = blocks.iter_mut();
    for (group, block) in groups.iter().zip(&mut blocks) {
        pack_int3_group(group, block);
    }
    if let (Some(block), false) = (blocks.next(), last.is_empty()) {
        let mut group = [0i8; GROUP];
        group[..last.len()].copy_from_slice(last);
        pack_int3_group(&group, block);
    }
}

#[inline(always)]
fn pack_int3_group(codes: &[i8; GROUP], bytes: &mut [u8; GROUP_BYTES]) {
    let mut words = [0u32; 16];
    for (word, four) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        *word = stored_four(four, 4);
    }
    let (low, high) = bytes.split_at_mut(16);
    for (byte, word) in low.iter_mut().zip(&words) {
        *byte = gather_pairs(*word);
    }
    for (byte, pair) in high.iter_mut().zip(words.as_chunks::<2>().0) {
        *byte = (gather_third(pair[0]) | (gather_third(pair[1]) << 4)) as u8;
    }
}

/// The codes of the int3 group at the start of `bytes`.
#[inline(always)]
pub(crate) fn unpack_int3(bytes: &[u8]) -> [i8; GROUP] {
    let Some(bytes) = bytes.first_chunk::<GROUP_BYTES>() else { return [0; GROUP] };
    let mut thirds = [0u32; 16];
    for (pair, byte) in thirds.as_chunks_mut::<2>().0.iter_mut().zip(&bytes[16..]) {
        *pair = [u32::from(byte & 15), u32::from(byte >> 4)];
    }
    let mut codes = [0i8; GROUP];
    for ((four, byte), third) in codes.as_chunks_mut::<4>().0.iter_mut().zip(&bytes[..16]).zip(&thirds) {
        let word = spread_pairs(u32::from(*byte)) | spread_third(*third);
        *four = word.to_le_bytes().map(|stored| stored.cast_signed() - 4);
    }
    codes
}

/// The codes of up to 16 bytes of int2; those past the end of the row are of no use.
#[inline(always)]
pub(crate) fn unpack_int2(bytes: &[u8]) -> [i8; 64] {
    let mut codes = [0i8; 64];
    let (fours, _) = codes.as_chunks_mut::<4>();
    for (four, byte) in fours.iter_mut().zip(bytes) {
        *four = spread_pairs(u32::from(*byte)).to_le_bytes().map(|stored| stored.cast_signed() - 2);
    }
    codes
}
