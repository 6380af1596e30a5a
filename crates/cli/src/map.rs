use std::fmt::Write as _;

use super::{Block, PoolRow};
use ipam_kit::cni::Environment;

/// The number of cells of a line.
const WIDTH: usize = 64;

/// The glyphs of a map, from free to full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Glyphs {
    /// Shades of Unicode blocks.
    Shades,
    /// ASCII, for a terminal that shows nothing else.
    Ascii,
}

impl Glyphs {
    /// The glyphs that the locale in these variables can show.
    pub(crate) fn of(environment: &Environment) -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| environment.text(name));
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { Self::Shades } else { Self::Ascii }
    }

    const fn signs(self) -> [&'static str; 5] {
        match self {
            Self::Shades => ["·", "░", "▒", "▓", "█"],
            Self::Ascii => [".", "-", "+", "*", "#"],
        }
    }

    /// A block without an address that could be given, such as the gateway's.
    const fn never(self) -> &'static str {
        match self {
            Self::Shades => "×",
            Self::Ascii => "x",
        }
    }

    fn of_block(self, block: &Block) -> &'static str {
        let [free, few, some, many, full] = self.signs();
        match (block.held, block.size) {
            (Some(0), 0) => self.never(),
            (None, _) => "?",
            (Some(0), _) => free,
            (Some(held), size) if held >= size => full,
            (Some(held), size) => match held.saturating_mul(3) / size {
                0 => few,
                1 => some,
                _ => many,
            },
        }
    }
}

/// Draws which addresses of a pool are held: one cell a block, each line beginning with its first
/// address. Nothing for a pool without blocks.
pub(crate) fn map(pool: &PoolRow, glyphs: Glyphs) -> String {
    if pool.blocks.is_empty() {
        return String::new();
    }
    let lines: Vec<(String, String)> = pool
        .blocks
        .chunks(WIDTH)
        .map(|line| {
            let cells = line.iter().map(|block| glyphs.of_block(block)).collect();
            (line[0].from.to_string(), cells)
        })
        .collect();
    let width = lines.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (label, cells) in lines {
        let _ = writeln!(text, "  {label:width$}  {cells}");
    }
    let _ = writeln!(text, "  {}", legend(pool, glyphs));
    text
}

fn legend(pool: &PoolRow, glyphs: Glyphs) -> String {
    let [free, few, some, many, full] = glyphs.signs();
    let mut sizes: Vec<u128> = pool.blocks.iter().map(|block| block.size).collect();
    sizes.retain(|size| *size > 0);
    let least = sizes.iter().min().copied().unwrap_or(0);
    let most = sizes.iter().max().copied().unwrap_or(0);
    let mut others = String::new();
    if pool.blocks.iter().any(|block| block.size == 0 && block.held == Some(0)) {
        let _ = write!(others, "  {} never given", glyphs.never());
    }
    if pool.blocks.iter().any(|block| block.held.is_none()) {
        others.push_str("  ? unknown");
    }
    if most <= 1 {
        return format!("one cell is one address: {free} free  {full} held{others}");
    }
    let cell = if least == most { most.to_string() } else { format!("{least} to {most}") };
    format!(
        "one cell is {cell} addresses: {free} free  {few} below a third  {some} below two thirds  \
         {many} above  {full} full{others}"
    )
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn pool(first: u32, size: u128, held: &[Option<u128>]) -> PoolRow {
        let address = |n: u128| IpAddr::V4(Ipv4Addr::from_bits(first + u32::try_from(n).unwrap()));
        let block = |(i, held): (usize, &Option<u128>)| Block {
            from: address(i as u128 * size),
            to: address((i as u128 + 1) * size - 1),
            size,
            held: *held,
        };
        PoolRow {
            pool: None,
            ranges: String::new(),
            size: size * held.len() as u128,
            held: None,
            free: None,
            gateways: Vec::new(),
            rules: None,
            blocks: held.iter().enumerate().map(block).collect(),
        }
    }

    #[test]
    fn a_small_pool_has_a_cell_for_each_address() {
        let held: Vec<_> = (0..70_u128).map(|n| Some(u128::from(n < 3 || n == 66))).collect();
        assert_eq!(
            map(&pool(0x0a01_0201, 1, &held), Glyphs::Shades),
            "  10.1.2.1   ███·····························································\n  \
             10.1.2.65  ··█···\n  \
             one cell is one address: · free  █ held\n"
        );
    }

    #[test]
    fn a_large_pool_has_shades() {
        let held = [0, 1, 100, 128, 200, 255, 256].map(Some);
        assert_eq!(
            map(&pool(0x0a00_0000, 256, &held), Glyphs::Shades),
            "  10.0.0.0  ·░▒▒▓▓█\n  one cell is 256 addresses: · free  ░ below a third  ▒ below two thirds  \
             ▓ above  █ full\n"
        );
    }

    #[test]
    fn ascii_and_unknown_blocks() {
        let text = map(
            &pool(0x0a00_0000, 4, &[Some(0), Some(1), Some(2), Some(3), Some(4), None]),
            Glyphs::Ascii,
        );
        assert_eq!(text.lines().next(), Some("  10.0.0.0  .-+*#?"));
        assert!(text.is_ascii() && text.ends_with("# full  ? unknown\n"), "{text}");
        assert_eq!(map(&pool(0, 1, &[]), Glyphs::Ascii), "");
    }

    #[test]
    fn an_address_that_is_never_given_is_not_drawn_as_free() {
        let mut pool = pool(0x0a01_0201, 1, &[Some(0), Some(0), Some(1)]);
        pool.blocks[0].size = 0;
        assert_eq!(
            map(&pool, Glyphs::Ascii),
            "  10.1.2.1  x.#\n  one cell is one address: . free  # held  x never given\n"
        );
        pool.blocks[0].held = Some(1);
        let drawn = map(&pool, Glyphs::Shades);
        assert!(drawn.starts_with("  10.1.2.1  █·█\n") && !drawn.contains('×'), "{drawn}");
    }

    #[test]
    fn the_locale_decides_on_the_glyphs() {
        let of = |pairs: &[(&str, &str)]| Glyphs::of(&Environment::new(pairs.iter().copied()));
        assert_eq!(of(&[("LANG", "de_DE.UTF-8")]), Glyphs::Shades);
        assert_eq!(of(&[("LANG", "C.utf8"), ("LC_ALL", "C")]), Glyphs::Ascii);
        assert_eq!(of(&[("LANG", "C"), ("LC_ALL", ""), ("LC_CTYPE", "C.UTF-8")]), Glyphs::Shades);
        assert_eq!(of(&[]), Glyphs::Ascii);
    }
}
