import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { freeformFunction } from '../../../../plugins/apis/openai/freeform-tools.ts'
import { larkPattern } from '../../../../plugins/apis/openai/lark-pattern.ts'

const { tools } = JSON.parse(readFileSync(join(packageRoot, 'test', 'fixtures', 'agents', 'codex.json'), 'utf8'))
const { name, description, format } = tools.find(({ type }: { type: string }) => type === 'custom')

t.test("Codex's grammar of patches becomes a pattern that matches patches only", async t => {
  const { parameters } = freeformFunction(name, description, format)
  const pattern = new RegExp((parameters.properties.input as unknown as { pattern: string }).pattern, 'u')
  const patch = (...lines: string[]) => ['*** Begin Patch', ...lines, '*** End Patch'].join('\n')
  for (const text of [
    patch('*** Add File: a/b.txt', '+one', '+', '+"two" \\ three'),
    patch('*** Delete File: a b', '*** Delete File: c'),
    patch('*** Update File: a', '@@', ' same', '-old', '+new', '@@ def f():', '+x', '*** End of File'),
    `${patch('*** Update File: a', '*** Move to: b')}\n`
  ]) {
    t.match(text, pattern, text)
    t.notMatch(text.replace('Begin', 'begin'), pattern)
    t.notMatch(`\`\`\`\n${text}\n\`\`\``, pattern)
  }
  for (const lines of [[], ['*** Add File: a'], ['*** Add File: a', 'one'], ['*** Update File: a', 'x'], ['+x']]) {
    t.notMatch(patch(...lines), pattern, lines.join('\n'))
  }
})

t.test('regular Lark grammars become expressions', async t => {
  const table: [grammar: string, matching: string[], others: string[]][] = [
    ['start: "a.b" | /c+/', ['a.b', 'cc'], ['axb', '', 'a.bc']],
    ['start: ("a" | "b")~2 "c"~1..3 // a comment', ['abc', 'bbccc'], ['ac', 'abcccc']],
    [
      '?start: word ("," word)* -> list\n\n// names\nword: LETTER+\nLETTER: "a".."c"\n',
      ['a', 'ab,c'],
      ['d', 'a,', ',a']
    ],
    ['start: ["-"] INT\n  | "none"i\n%import common.INT', ['-12', '3', 'None'], ['', '-', '--1']],
    ['start: X Y\nX.2: "1"\n%import common (INT, WS)\nY: WS INT', ['1 \n2'], ['12']],
    ['start: A\n%import common.SIGNED_NUMBER -> A', ['-1.5e3', '.5'], ['1.5.']],
    ['start: /./ /./s /[.]\\//', ['a\n./', '\r\r./'], ['\na./', 'aaa/']],
    ['start: "\\n\\t\\"\\\\" "é"i', ['\n\t"\\É'], ['nt']],
    ['start: (((("x"))))?', ['', 'x'], ['xx']]
  ]
  for (const [grammar, matching, others] of table) {
    const pattern = new RegExp(`^(?:${larkPattern(grammar)})$`, 'u')
    for (const text of matching) t.match(text, pattern, `${grammar}: ${JSON.stringify(text)}`)
    for (const text of others) t.notMatch(text, pattern, `${grammar}: ${JSON.stringify(text)}`)
  }
})

t.test('other Lark grammars have no expression', async t => {
  const table: [what: string, grammar: string][] = [
    ['a rule that contains itself', 'start: "(" start? ")"'],
    ['rules that contain each other', 'start: a\na: "x" b?\nb: "y" a?'],
    ['no first rule', 'begin: "x"'],
    ['an unknown rule', 'start: other'],
    ['an unknown terminal', 'start: X\n%import common.NOTHING'],
    ['ignored blanks', 'start: "x"\n%ignore " "'],
    ['another directive', 'start: "x"\n%declare Y'],
    ['a template', 'start: pair{"x"}\npair{x}: x x'],
    ['flags', 'start: /x/i'],
    ['an open parenthesis', 'start: ("x"'],
    ['a closed parenthesis', 'start: "x")'],
    ['a lone sign', 'start: * "x"'],
    ['a wrong escape', 'start: "\\q"'],
    ['nothing', ''],
    ['a long grammar', `start: "${'x'.repeat(20_000)}"`],
    [
      'a long expression',
      `start: a a a a a a a a\n${'abcdefghi'.replace(/(.)(?=(.))/g, '$1: $2 $2 $2 $2 $2 $2\n')}: "x"`
    ],
    ['many parentheses', `start: ${'('.repeat(9000)}`],
    ['a comment that seems to end', `start: ${'// '.repeat(3000)}\n!`]
  ]
  for (const [what, grammar] of table) t.equal(larkPattern(grammar), undefined, what)
})
