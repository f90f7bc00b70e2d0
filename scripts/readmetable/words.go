package main

// english is the words as they are.
var english = map[string]string{}

// chinese is the words of tables in README.zh-CN.md. What is missing stays English.
var chinese = map[string]string{
	"variant":    "方案",
	"peak":       "峰值",
	"requests/s": "每秒请求数",
	"connect":    "连接",
	"first byte": "首字节",
	"errors":     "错误",
	"blocks":     "区组数",
	"against":    "对照",
	"ratio":      "比值",
	"interval":   "区间",
	"verdict":    "结论",
	"pairs":      "配对数",
	"metric":     "指标",
	"level":      "负载",
	"published":  "原文",
	"measured":   "实测",

	"ratio there":     "原文比值",
	"ratio here":      "实测比值",
	"direction":       "方向",
	"note":            "备注",
	"could have seen": "可检出的最小差异",

	"agrees":             "一致",
	"differs":            "不一致",
	"faster":             "更快",
	"slower":             "更慢",
	"less CPU":           "CPU 更少",
	"more CPU":           "CPU 更多",
	"no difference seen": "未见差异",
}
