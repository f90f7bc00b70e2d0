package watch

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"spillway/internal/plans"
)

const (
	statementLength = 300  // bytes of a statement's text
	unreadable      = "?…" // ends a text whose rest could be read in several ways
	invalid         = "�"  // stands for bytes that are no text
)

// withoutLiterals replaces the strings and numbers of a statement by ? and leaves out its comments, which hold personal data and
// secrets too. Runs of blanks become one. dialect is plans.Postgres or plans.MySQL; where a string ends also depends on settings of
// the session that sent the statement, which are not known. So the text ends with … where the settings make a difference, and where
// a string or a comment is cut off. The result has at most statementLength bytes, all of them printable.
func withoutLiterals(sql string, dialect plans.Dialect) string {
	sql = strings.ToValidUTF8(strings.ReplaceAll(sql, "\x00", invalid), invalid)
	tokens, whole := certainTokens(sql, dialect)
	var out strings.Builder
	end := 0
	for _, t := range tokens {
		if t.Kind == plans.Comment {
			continue // what follows has a blank in front
		}
		if out.Len() > 0 && t.Start > end {
			out.WriteByte(' ')
		}
		end = t.End
		switch source := sql[t.Start:t.End]; {
		case t.Kind == plans.String, t.Kind == plans.Number, source[0] == '"' && dialect == plans.MySQL:
			out.WriteByte('?')
		default:
			out.WriteString(printable(source))
		}
		if out.Len() > statementLength {
			return shortened(out.String(), statementLength)
		}
	}
	if whole {
		return out.String()
	}
	if rest := sql[end:]; out.Len() > 0 && strings.TrimSpace(rest[:min(1, len(rest))]) == "" {
		out.WriteByte(' ')
	}
	return shortened(out.String(), statementLength-len(unreadable)) + unreadable
}

// certainTokens returns the tokens of a statement up to the first one that its database may read in another way. whole says that
// there is none.
func certainTokens(sql string, dialect plans.Dialect) (tokens []plans.Token, whole bool) {
	tokens, err := plans.Lex(sql, dialect)
	whole = err == nil
	settings := []plans.Dialect{plans.BackslashEscapes}
	if dialect == plans.MySQL {
		settings = append(settings, plans.ANSIQuotes, plans.ANSIQuotes|plans.BackslashEscapes)
	}
	for _, s := range settings {
		others, err := plans.Lex(sql, dialect|s)
		same := 0
		for same < len(tokens) && same < len(others) && tokens[same].End == others[same].End {
			same++
		}
		whole = whole && err == nil && same == len(tokens) && same == len(others)
		tokens = tokens[:same]
	}
	for i, t := range tokens {
		if isUncertain(sql, t, dialect) {
			return tokens[:i], false
		}
	}
	return tokens, whole
}

// isUncertain reports whether versions or character sets of a database read a token in several ways.
func isUncertain(sql string, t plans.Token, dialect plans.Dialect) bool {
	source, rest := sql[t.Start:t.End], sql[t.End:]
	if t.Kind != plans.String && strings.Contains(source, invalid) {
		return true
	}
	switch t.Kind {
	case plans.Comment: // MySQL runs the text of /*! and /*M!, and reads strings in that of /*+
		return dialect == plans.MySQL && (strings.HasPrefix(source, "/*!") || strings.HasPrefix(source, "/*M!") ||
			strings.HasPrefix(source, "/*+"))
	case plans.Name: // ` is an operator of PostgreSQL
		return dialect == plans.Postgres && source[0] == '`'
	case plans.Word: // in some character sets, other characters are blanks
		return strings.ContainsFunc(source, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsMark(r) && !unicode.IsDigit(r) && r != '_' && r != '$'
		})
	case plans.Number: // 1a$b$ is a number and a name, or a number and the start of a string
		return strings.HasPrefix(rest, "$")
	case plans.Param:
		return source[0] == '$' && strings.Trim(source[1:], "0123456789") != ""
	case plans.Symbol: // a lone $ is the rest of a tag, or starts a string of a newer MySQL; -- may be a comment in front of a blank
		return source == "$" || dialect == plans.MySQL && source == "-" && len(rest) > 1 && rest[0] == '-' && rest[1] >= utf8.RuneSelf
	}
	return false
}

// printable replaces what a terminal would act on.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// shortened is the beginning of a text.
func shortened(s string, most int) string {
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}
