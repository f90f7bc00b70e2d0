package plans

import (
	"slices"
	"strings"
)

// Statement is one SELECT with named parameters: text and parameters in turn.
// It is immutable and can be used concurrently.
type Statement struct {
	texts  []string // one more than params: the text before, between and after them
	params []string // in order of appearance, repeated as often as they occur
}

// ParseStatement reads one statement that starts with SELECT, WITH or VALUES
// and has parameters written :name. It drops one semicolon at the end, and
// comments that end with the line, so that the text can be put in parentheses.
// Errors start with line and column, both from 1, and say what to write.
func ParseStatement(sql string, d Dialect) (Statement, error) {
	tokens, err := Lex(sql, d)
	if err != nil {
		return Statement{}, err
	}
	p := statementParser{src: sql}
	for _, t := range tokens {
		if err := p.take(t); err != nil {
			return Statement{}, err
		}
	}
	if !p.started {
		return Statement{}, ErrorAt(sql, 0, "the statement is empty; it starts with SELECT, WITH or VALUES")
	}
	if n := len(p.opened); n > 0 {
		return Statement{}, ErrorAt(sql, p.opened[n-1], "this ( is not closed")
	}
	const blanks = " \t\r\n\f\v"
	texts := append(p.texts, strings.TrimRight(p.text.String(), blanks))
	texts[0] = strings.TrimLeft(texts[0], blanks)
	return Statement{texts: texts, params: p.params}, nil
}

// Names returns the distinct parameters in the order of their first use.
func (s Statement) Names() []string {
	var names []string
	for _, p := range s.params {
		if !slices.Contains(names, p) {
			names = append(names, p)
		}
	}
	return names
}

// Render returns the statement with each parameter replaced by what placeholder
// returns for its name. It calls placeholder once for each occurrence, in order.
func (s Statement) Render(placeholder func(name string) string) string {
	var b strings.Builder
	for i, p := range s.params {
		b.WriteString(s.texts[i])
		b.WriteString(placeholder(p))
	}
	if len(s.texts) > 0 {
		b.WriteString(s.texts[len(s.texts)-1])
	}
	return b.String()
}

// statementParser takes the tokens of one statement in turn.
type statementParser struct {
	src     string
	at      int // offset after the last token
	text    strings.Builder
	texts   []string
	params  []string
	opened  []int // offsets of parentheses not closed yet
	started bool  // the first word was SELECT, WITH or VALUES
	end     int   // offset of the semicolon at the end, +1; 0: none yet
}

func (p *statementParser) take(t Token) error {
	blank := p.src[p.at:t.Start]
	p.at = t.End
	if t.Kind != Comment {
		if err := p.checkPlace(t); err != nil {
			return err
		}
	}
	if p.end > 0 {
		return nil // a comment after the statement
	}
	p.text.WriteString(blank)
	switch {
	case t.Kind == Comment && !strings.HasPrefix(t.Text, "/*"):
		return nil // it would swallow what is put after the statement
	case t.IsSymbol(";"):
		p.end = t.Start + 1
		return nil
	case t.IsSymbol("("):
		p.opened = append(p.opened, t.Start)
	case t.IsSymbol(")"):
		if len(p.opened) == 0 {
			return ErrorAt(p.src, t.Start, "this ) closes nothing")
		}
		p.opened = p.opened[:len(p.opened)-1]
	case t.Kind == Param && strings.HasPrefix(t.Text, "$"):
		return ErrorAt(p.src, t.Start, "parameters by number (%s) are not supported; write :name", t.Text)
	case t.Kind == Param && t.Text != "":
		p.texts = append(p.texts, p.text.String())
		p.text.Reset()
		p.params = append(p.params, t.Text)
		return nil
	}
	p.text.WriteString(p.src[t.Start:t.End])
	return nil
}

// checkPlace refuses a second statement, and one that starts with another word.
func (p *statementParser) checkPlace(t Token) error {
	switch {
	case p.end > 0:
		return ErrorAt(p.src, p.end-1, "several statements; write one, without this ;")
	case p.started || t.IsSymbol("("):
		return nil
	case t.IsAny("SELECT", "WITH", "VALUES"):
		p.started = true
		return nil
	}
	return ErrorAt(p.src, t.Start, "the statement must start with SELECT, WITH or VALUES")
}
