//! A real cluster, scenarios, faults and benchmarks for Quorate.
