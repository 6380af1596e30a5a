//! `pools`: the use of each pool.

use serde_json::Value;

use super::ask::{AllocatorRow, ask};
use super::call::Operator;
use super::printed::Printed;
use ipam_cli::{PoolRow, Row, print_pools};
use ipam_kit::error::{ErrorCode, Result};

/// The arguments that an allocator answers with its pools.
pub(crate) const QUESTION: [&str; 4] = ["pools", "--json", "--config", "-"];

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let mut printed = Printed::default();
    let mut pools: Vec<(PoolRow, Row)> = Vec::new();
    for AllocatorRow { row, path, .. } in ask(operator, &QUESTION, &mut printed)? {
        let parsed = PoolRow::parse(&Value::from(row.clone()), &path);
        let parsed = parsed.map_err(|error| error.with_code(ErrorCode::DELEGATE));
        let Some(pool) = printed.keep(parsed) else { continue };
        if !pools.iter().any(|(known, _)| *known == pool) {
            pools.push((pool, row));
        }
    }
    printed.text = print_pools(&operator.arguments, &operator.environment, pools);
    Ok(printed)
}
