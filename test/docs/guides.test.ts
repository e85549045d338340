import { readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { renderConfigDocs } from '../../scripts/config-docs.ts'
import { renderErrorDocs } from '../../scripts/error-docs.ts'
import { renderManPage } from '../../scripts/man-page.ts'
import { PUBLISHED, parametersOf, renderModelDocs } from '../../scripts/model-docs.ts'
import { exists, getAnchors, getBlocks, getProse, OWN_TESTS, pages, readPage } from './guides.ts'
import { checkData } from './run-page.ts'

// Checks the guides without running anything.

/** Pages in the root folder that guides link to. */
const AT_THE_ROOT = ['ARCHITECTURE.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md']
/** Blocks that need something a test cannot have, such as Docker. Run more blocks instead of raising this. */
const MAX_UNTESTED = 24
const everywhere = [...pages(), ...AT_THE_ROOT]

/** Returns a page's links within this repository: the path from the root, and the anchor. */
function getLinks(page: string) {
  const text = getProse(page).replaceAll(/`[^`\n]*`/g, '')
  const targets = [...text.matchAll(/\]\(([^)\s]+)\)/g)].map(([, target]) => target!)
  return targets
    .filter(target => !/^[a-z]+:/.test(target))
    .map(target => {
      const [path = '', anchor] = target.split('#')
      return { target, path: path === '' ? page : normalize(join(dirname(page), path)), anchor }
    })
}

t.test('the README is short', async t => {
  const words = readPage('README.md').split(/\s+/).filter(Boolean).length
  t.ok(words <= 900, `${words} words`)
})

t.test('links lead to existing pages and headings', async t => {
  let checked = 0
  for (const page of everywhere) {
    for (const { target, path, anchor } of getLinks(page)) {
      checked++
      if (!exists(path)) t.fail(`${page}: ${target} does not exist`)
      else if (anchor !== undefined && !getAnchors(path).has(anchor)) t.fail(`${page}: ${target} has no such heading`)
    }
  }
  t.ok(checked > 100, `${checked} links`)
})

t.test('every page is linked from the README and listed in an index', async t => {
  const reached = new Set(['README.md'])
  for (const page of reached) {
    for (const { path } of getLinks(page)) if (path.endsWith('.md') && exists(path)) reached.add(path)
  }
  t.same(
    pages().filter(page => !reached.has(page)),
    []
  )
  const maps = ['docs/README.md', 'docs/measurements/README.md']
  const listed = maps.flatMap(getLinks).map(({ path }) => path)
  t.same(
    pages().filter(page => page !== 'docs/README.md' && !listed.includes(page)),
    []
  )
})

t.test('SECURITY.md names tests that exist', async t => {
  const cells = [...readPage('SECURITY.md').matchAll(/^\|(?:[^|]*\|){3} ([^|]*\w) \|$/gm)].map(([, cell]) => cell!)
  const tests = cells.filter(cell => cell !== 'test').flatMap(cell => cell.split(', '))
  t.ok(tests.length > 50, `${tests.length} tests`)
  for (const name of tests) t.ok(exists(`test/${name}.test.ts`) || exists(`test/${name}.thorough.test.ts`), name)
})

t.test('generated pages match their source', async t => {
  const rendered = {
    ...renderConfigDocs(builtInPlugins),
    ...renderErrorDocs(),
    ...(await renderManPage()),
    ...renderModelDocs()
  }
  for (const [name, text] of Object.entries(rendered)) {
    t.equal(readFileSync(join(packageRoot, 'docs', name), 'utf8'), text, `${name}: run "npm run docs:write"`)
  }
})

t.test('the shapes of published models have as many parameters as their publishers report', async t => {
  for (const model of PUBLISHED) {
    const share = parametersOf(model) / (model.parameters * 1e9)
    t.ok(share > 0.97 && share < 1.03, `${model.repository}: ${share.toFixed(3)}`)
  }
})

t.test('every block has a known language', async t => {
  const languages = ['sh', 'js', 'ts', 'python', 'json', 'yaml', 'toml', 'text', 'dockerfile', '']
  for (const page of pages()) {
    for (const { line, language } of getBlocks(page)) t.ok(languages.includes(language), `${page}:${line}: ${language}`)
  }
})

t.test('few blocks are untested, and each has a reason', async t => {
  const directives = ['untested: ', 'settings of ', 'at a terminal: ', 'output', 'figures of another run', 'fails']
  let untested = 0
  for (const page of pages()) {
    for (const { line, directive } of getBlocks(page)) {
      if (directive === undefined) continue
      t.ok(
        directives.some(known => directive.startsWith(known)),
        `${page}:${line}: ${directive}`
      )
      if (directive.startsWith('untested: ')) untested++
    }
  }
  t.ok(untested <= MAX_UNTESTED, `${untested} blocks are untested`)
  for (const [page, test] of Object.entries(OWN_TESTS)) {
    t.ok(readFileSync(join(packageRoot, test), 'utf8').includes(page.replace('docs/', '')), `${test} reads ${page}`)
  }
})

t.test('JSON is valid, and settings have no mistakes', async t => {
  const blocks = pages()
    .filter(page => page !== 'docs/plugins.md')
    .flatMap(getBlocks)
  const checked = await checkData(t, blocks)
  t.ok(checked >= 10, `${checked} blocks`)
})

t.test('guides use plain language', async t => {
  /** The name says what to write instead. */
  const patterns: [RegExp, string][] = [
    [/\b(simply|just|easily|obviously|of course)\b/i, 'leave it out: it is not easy for whoever reads it'],
    [/\b(utili[sz]e[sd]?|leverag(e|es|ed|ing)|facilitat(e|es|ed))\b/i, 'use, help'],
    [/\b(blazing|seamless(ly)?|powerful|cutting.edge|world.class|next.generation|robust)\b/i, 'say what it does'],
    [/\b(in order to|due to the fact|at this point in time)\b/i, 'to, because, now'],
    [/\b(whilst|amongst|thusly|herein|aforementioned)\b/i, 'while, among, so, here'],
    [/\bplease\b/i, 'leave it out']
  ]
  for (const page of pages()) {
    const lines = getProse(page).split('\n')
    for (const [at, line] of lines.entries()) {
      for (const [pattern, instead] of patterns) {
        const found = pattern.exec(line.replaceAll(/`[^`]*`/g, ''))
        if (found) t.fail(`${page}, near line ${at + 1}: "${found[0]}": ${instead}`)
      }
    }
  }
  t.ok(
    patterns.some(([pattern]) => pattern.test('It is simply there.')),
    'the check can fail'
  )
})
