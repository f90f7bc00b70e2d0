package postgres

import "math"

// largeTable is the number of rows above which sorting or scanning a table for
// one page is refused.
const largeTable = 10_000

// wasteful is how many times the window's rows a statement may read before it
// counts as scanning, where that is more than largeTable.
const wasteful = 10

// wrappingLimits is the number of Limit nodes that writer.write puts around a
// feed. They let through the whole window, whatever the planner assumes.
const wrappingLimits = 2

// planReader looks for parts of a plan that read a large table to show a window.
type planReader struct {
	window     float64                              // rows asked for
	size       func(scan planNode) (float64, error) // estimated rows of the table scanned
	ordersFeed func(scan planNode) bool             // whether it is the table of the key
	findings   []finding
	joinCond   string // of the nearest hash join above
}

// finding is a table that is read too much.
type finding struct {
	scan     planNode // of the table
	sorted   bool     // its rows are sorted; otherwise they are only read
	rows     float64  // how many
	window   float64  // for a window of so many
	joinCond string   // the rows are hashed to be joined on this
}

// walk follows the plan downwards. Need is the number of rows that the node's
// parent will take from it, all of them being infinity; limits is the number of
// wrapping Limit nodes still to come.
func (p *planReader) walk(n planNode, need float64, limits int) error {
	switch n.Type {
	case "Limit":
		if limits == 0 {
			need = min(need, n.Rows)
		}
		return p.walkChildren(n, need, max(0, limits-1))
	case "Sort", "Incremental Sort":
		if len(n.Plans) > 0 && n.Plans[0].Rows > largeTable {
			p.add(finding{scan: p.orderingScan(n), sorted: true, rows: n.Plans[0].Rows})
		}
		return p.walkChildren(n, math.Inf(1), limits)
	case "Nested Loop", "Merge Join", "Subquery Scan", "Result", "Gather", "Gather Merge", "Append", "Merge Append",
		"LockRows", "ProjectSet", "Unique":
		return p.walkChildren(n, need, limits)
	case "Hash Join":
		outside := p.joinCond
		p.joinCond = n.HashCond
		err := p.walkChildren(n, need, limits)
		p.joinCond = outside
		return err
	case "Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan":
		return p.scan(n, need)
	}
	return p.walkChildren(n, math.Inf(1), limits)
}

// walkChildren passes the need on: a node that drops or multiplies rows takes
// accordingly more or fewer of its child's. The inner side of a join, and what is
// computed beforehand, is taken whole.
func (p *planReader) walkChildren(n planNode, need float64, limits int) error {
	for _, child := range n.Plans {
		childNeed := math.Inf(1)
		switch child.Role {
		case "Outer", "Member", "Subquery":
			childNeed = need
			if n.Type != "Limit" {
				childNeed = need * max(1, child.Rows) / max(1, n.Rows)
			}
		case "Inner":
			if n.Type == "Merge Join" { // both sides advance together
				childNeed = need * max(1, child.Rows) / max(1, n.Rows)
			}
		}
		if err := p.walk(child, childNeed, limits); err != nil {
			return err
		}
	}
	return nil
}

// scan judges how much of a table is read.
func (p *planReader) scan(n planNode, need float64) error {
	reads, err := p.reads(n, need)
	if err != nil {
		return err
	}
	if reads > max(largeTable, wasteful*p.window) {
		p.add(finding{scan: n, rows: reads})
	}
	return nil
}

// reads estimates the rows of a table that a scan reads to hand on need of them.
func (p *planReader) reads(n planNode, need float64) (float64, error) {
	all := math.IsInf(need, 1)
	indexed := n.IndexCond != "" || n.Recheck != ""
	switch {
	case all && indexed:
		return n.Rows, nil // at least: what a filter drops is not known
	case !all && n.Filter == "":
		return need, nil
	}
	size, err := p.size(n)
	if err != nil || all {
		return size, err
	}
	// The rows that pass the filter are taken to be spread over the table.
	return min(size, need*size/max(1, n.Rows)), nil
}

func (p *planReader) add(f finding) {
	f.window, f.joinCond = p.window, p.joinCond
	p.findings = append(p.findings, f)
}

// orderingScan returns the scan below n that should give the feed's order: that
// of the key's table, or of the largest where it is not there.
func (p *planReader) orderingScan(n planNode) planNode {
	var best planNode
	if n.Relation != "" {
		best = n
	}
	for _, child := range n.Plans {
		c := p.orderingScan(child)
		switch {
		case c.Relation == "" || best.Relation != "" && p.ordersFeed(best):
		case best.Relation == "" || p.ordersFeed(c) || c.Rows > best.Rows:
			best = c
		}
	}
	return best
}
