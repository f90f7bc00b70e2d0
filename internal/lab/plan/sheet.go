package plan

import "strings"

// A Sheet is a plan as tables and sentences, for a page.
type Sheet struct {
	Title       string
	Grounds     []string
	Needs       [][]string // heads first: need, amount, what it rests on
	Breaks      [][]string // heads first: rate, what is used up, what takes over
	Beyond      string     // says which breaks are left out; "": none
	NotMeasured []string
	Notes       []string
}

// Sheet returns the content of the text as tables.
func (p *Plan) Sheet() Sheet {
	s := Sheet{
		Title: p.title(), Grounds: p.grounds(), NotMeasured: p.NotMeasured, Notes: p.Notes,
		Needs: [][]string{{"need", "amount", "rests on"}}, Breaks: [][]string{{"at", "is used up", "then"}},
	}
	for i := range p.Lines {
		l := &p.Lines[i]
		reasons := []string{l.Formula}
		for _, f := range l.Figures {
			reasons = append(reasons, f.text())
		}
		if l.Note != "" {
			reasons = append(reasons, l.Note)
		}
		s.Needs = append(s.Needs, []string{l.title(), l.need(), strings.Join(reasons, "; ")})
	}
	for i, b := range p.Breaks {
		if i > 0 && b.RateHz > breaksShown*p.RateHz {
			s.Beyond = "The others are beyond " + rate(breaksShown*p.RateHz) + "."
			break
		}
		s.Breaks = append(s.Breaks, []string{rate(b.RateHz), p.breakText(&b), b.Next})
	}
	return s
}
