//! Frames: a data object is cut into pieces that are compressed each for itself, so that several are at work at once and
//! any one can be read alone. One after the other they are a plain zstd stream: `zstd -d` reads it.

use std::io::Cursor;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, compress_bound};

/// The size of a frame when decompressed, in bytes. Larger ones compress no better at this level, whose window is 2 MiB.
pub const FRAME: usize = 4 << 20;

/// zstd's level. Level 1 is half as fast again and the result 5% larger; the network is slower than either.
const LEVEL: i32 = 3;

/// Why a frame can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FrameFault {
    /// The compressor refuses: there is no memory.
    #[error("failed to compress a frame: {0}")]
    Compress(#[source] std::io::Error),
    /// It is damaged: zstd's own check does not hold, or it is no frame.
    #[error("failed to decompress a frame: {0}")]
    Decompress(#[source] std::io::Error),
    /// It holds another amount than it should.
    #[error("a frame holds {got} bytes instead of {wanted}")]
    Size {
        /// What came out.
        got: usize,
        /// What the manifest says.
        wanted: usize,
    },
}

/// The largest a frame can get, in bytes.
pub(super) fn largest_frame() -> u32 {
    u32::try_from(compress_bound(FRAME)).unwrap_or(u32::MAX)
}

/// Compresses one frame, of at most [`FRAME`] bytes.
pub fn compress(plain: &[u8]) -> Result<Vec<u8>, FrameFault> {
    let mut compressor = Compressor::new(LEVEL).map_err(FrameFault::Compress)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true)).map_err(FrameFault::Compress)?;
    compressor.compress(plain).map_err(FrameFault::Compress)
}

/// Decompresses one frame, which must come to so many bytes, behind what is in `plain`. Where there is room for more than this
/// frame nothing is made anew.
pub fn decompress(frame: &[u8], plain: &mut Vec<u8>, wanted: usize) -> Result<(), FrameFault> {
    let mut decompressor = Decompressor::new().map_err(FrameFault::Decompress)?;
    plain.reserve(wanted);
    let before = plain.len() as u64;
    let mut behind = Cursor::new(plain);
    behind.set_position(before);
    let got = decompressor.decompress_to_buffer(frame, &mut behind).map_err(FrameFault::Decompress)?;
    if got == wanted { Ok(()) } else { Err(FrameFault::Size { got, wanted }) }
}
