//! Database sessions in documents: statements after a prompt, and their answers as clients print them.

/// A statement, and its answer if one is shown.
#[derive(Debug, Default)]
pub struct Exchange {
    pub statement: String,
    /// Empty if the client prints no column names.
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// The exchanges of a page that begin with a prompt such as `app=>`, in their order.
pub fn exchanges(page: &str, prompt: &str) -> Vec<Exchange> {
    let blocks = page.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(|block| in_block(block, prompt)).collect()
}

fn in_block(block: &str, prompt: &str) -> Vec<Exchange> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    let mut is_open = false;
    for line in block.lines() {
        // A statement continues after another prompt, such as `app->`.
        let continued = line.split_once("> ").filter(|_| is_open).map(|(_, typed)| typed);
        if let Some(typed) = continued.or_else(|| line.strip_prefix(prompt)) {
            // A statement ends with its semicolon, before any comment.
            let typed = typed.split("  -- ").next().unwrap_or(typed).trim_end();
            match exchanges.last_mut().filter(|_| is_open) {
                Some(exchange) => exchange.statement.extend(["\n", typed]),
                None => exchanges.push(Exchange { statement: typed.to_owned(), ..Exchange::default() }),
            }
            is_open = !typed.ends_with(';');
        } else if PROMPTS.iter().any(|other| line.starts_with(other)) {
            // Skips a statement for another engine.
        } else if let Some(exchange) = exchanges.last_mut() {
            exchange.read(line);
        }
    }
    exchanges
}

pub const PROMPTS: [&str; 3] = ["app=>", "mysql>", "sqlite>"];

impl Exchange {
    /// A line of the answer.
    fn read(&mut self, line: &str) {
        let is_border = line.starts_with('+') || line.contains("-+-") || line.starts_with("---");
        if is_border || line.is_empty() {
            return;
        }
        // sqlite3 prints no column names, and nothing around its columns.
        let has_names = line.starts_with([' ', '|']);
        let cells = line.strip_prefix('|').map_or(line, |line| line.trim_end().trim_end_matches('|'));
        let cells = cells.split('|').map(|cell| cell.trim().to_owned()).collect();
        if has_names && self.columns.is_empty() {
            self.columns = cells;
        } else {
            self.rows.push(cells);
        }
    }
}
