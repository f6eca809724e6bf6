//! Any text as a ticket: no panic, and what is read is written as what is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_backup::ticket::Ticket;

fuzz_target!(|text: &str| {
    if let Ok(ticket) = Ticket::parse(text) {
        let _ = ticket.check_flags("/var/lib/etcd/data");
        if let Ok(rendered) = ticket.render() {
            assert_eq!(Ticket::parse(&rendered).unwrap(), ticket);
        }
    }
});
