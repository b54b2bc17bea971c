//! Applies the keys that the user presses.

use std::ops::ControlFlow;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::board::Board;
use super::order::WatchOrder;

impl Board {
    /// Breaks if the key ends the CLI.
    pub(crate) fn press(&mut self, key: KeyEvent) -> ControlFlow<()> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => {}
            KeyCode::Char('c') if control => return ControlFlow::Break(()),
            _ if control => {}
            code if self.typing => self.type_in(code),
            KeyCode::Esc if !self.filter.is_empty() => self.type_in(KeyCode::Esc),
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            code => self.command(code),
        }
        ControlFlow::Continue(())
    }

    fn type_in(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.len() < MAX_FILTER_BYTES => self.filter.push(c),
            _ => return,
        }
        self.scrolled = 0;
    }

    fn command(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.sort(self.order.next()),
            KeyCode::Char('h') => self.sort(WatchOrder::Hottest),
            KeyCode::Char('e') => self.sort(WatchOrder::Emptiest),
            KeyCode::Char('d') => self.sort(WatchOrder::Denied),
            KeyCode::Char('k') => self.sort(WatchOrder::Key),
            KeyCode::Up => self.scroll(-1),
            KeyCode::Down => self.scroll(1),
            KeyCode::PageUp => self.scroll(-PAGE),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
    }

    fn sort(&mut self, order: WatchOrder) {
        self.order = order;
        self.scrolled = 0;
    }

    fn scroll(&mut self, by: isize) {
        self.scrolled = self.scrolled.saturating_add_signed(by).min(self.visible().len().saturating_sub(1));
    }
}

/// As long as a key can be.
const MAX_FILTER_BYTES: usize = 255;
const PAGE: isize = 20;

#[cfg(test)]
mod tests {
    use super::super::board::tests::World;
    use super::*;

    /// Presses a key, and reports whether it ends the CLI.
    fn press(board: &mut Board, code: KeyCode) -> bool {
        board.press(KeyEvent::new(code, KeyModifiers::NONE)).is_break()
    }

    /// None of them ends it.
    fn write(board: &mut Board, text: &str) {
        text.chars().for_each(|c| assert!(!press(board, KeyCode::Char(c))));
    }

    #[test]
    fn letters_sort_pause_and_quit() {
        let mut board = Board::new(WatchOrder::Hottest);
        let mut orders = Vec::new();
        for key in ["s", "s", "s", "s", "e", "d", "k", "h"] {
            write(&mut board, key);
            orders.push(board.order);
        }
        let four = [WatchOrder::Emptiest, WatchOrder::Denied, WatchOrder::Key, WatchOrder::Hottest];
        assert_eq!(orders, [four, four].concat());
        write(&mut board, "p");
        assert!(board.paused);
        write(&mut board, " ");
        assert!(!board.paused);
        assert!(press(&mut board, KeyCode::Char('q')));
    }

    #[test]
    fn typed_text_is_a_filter_and_not_a_command() {
        let mut board = Board::new(WatchOrder::Hottest);
        write(&mut board, "/qp:x");
        press(&mut board, KeyCode::Backspace);
        assert_eq!((board.filter.as_str(), board.typing, board.paused), ("qp:", true, false));
        press(&mut board, KeyCode::Enter);
        assert_eq!((board.filter.as_str(), board.typing), ("qp:", false));
        assert!(!press(&mut board, KeyCode::Esc), "it clears the filter");
        assert_eq!((board.filter.as_str(), board.typing), ("", false));
        write(&mut board, "/z");
        assert!(!press(&mut board, KeyCode::Esc));
        assert_eq!((board.filter.as_str(), board.typing), ("", false));
        assert!(press(&mut board, KeyCode::Esc));
    }

    #[test]
    fn control_c_quits_even_while_typing() {
        let mut board = Board::new(WatchOrder::Hottest);
        write(&mut board, "/a");
        assert!(board.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)).is_break());
    }

    #[tokio::test]
    async fn scrolling_ends_with_the_rows() {
        let mut world = World::new();
        for n in 0..30 {
            world.take(&format!("{n:02}"), "10 once", 1);
        }
        world.snapshot().await;
        let board = &mut world.board;
        press(board, KeyCode::Up);
        assert_eq!(board.scrolled, 0);
        press(board, KeyCode::PageDown);
        press(board, KeyCode::Down);
        assert_eq!(board.scrolled, 21);
        press(board, KeyCode::PageDown);
        assert_eq!(board.scrolled, 29);
        press(board, KeyCode::Home);
        assert_eq!(board.scrolled, 0);
    }
}
