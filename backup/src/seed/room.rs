//! Foresees whether a backup fits on the volume.

use std::path::Path;

use super::SeedError;
use crate::format::Choice;
use crate::restore;

/// What each event takes in the database besides its record, in bytes: its place in a page, and its part of the page's own.
const OF_A_PAGE: u64 = 24;
/// What etcdutl preallocates for the log (a segment, and the next one), and a little for the folders and its small database.
const FOR_THE_LOG: u64 = 136 << 20;

/// Demands that the volume has room for the database with its history.
pub(super) fn check(choice: &Choice, volume: &Path) -> Result<(), SeedError> {
    let free = restore::free(volume).map_err(|fault| SeedError::volume("measure", volume, fault))?;
    let needed = projected(choice).saturating_add(FOR_THE_LOG);
    if needed > free { Err(SeedError::NoRoom { needed, free }) } else { Ok(()) }
}

/// How large the database will be: the full snapshot's, with the events that are put to it. To leave events out of that, it is
/// written once more beside it.
fn projected(choice: &Choice) -> u64 {
    if choice.rewinds() {
        return choice.chain.full.database_bytes.saturating_mul(2);
    }
    let links = choice.chain.links.iter().take_while(|link| link.delta.from <= choice.revision);
    links.fold(choice.chain.full.database_bytes, |bytes, link| {
        let pages = link.delta.events.saturating_mul(OF_A_PAGE);
        bytes.saturating_add(link.delta.data.plain_bytes).saturating_add(pages)
    })
}
