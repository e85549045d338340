import t from 'tap'
import { CorralError } from '../../../core/errors.ts'
import {
  createInputGuard,
  createInputRecords,
  findBlame,
  inputOf,
  listConstraints,
  type Ticket
} from '../../../runtimes/llama-server/input-guard.ts'
import { isLarge } from '../../../runtimes/llama-server/text-length.ts'
import { readFixture } from '../../support/fixture.ts'

const BAD = inputOf('grammar', 'root ::= a{0,20}')
const GOOD = inputOf('schema', '{"type":"object"}')
const TEMPLATE = inputOf('template', '{% for i in range(10000000) %}')
const ticket = (more: Partial<Ticket>): Ticket => ({
  constraints: [],
  reportsProgress: true,
  answered: false,
  generated: false,
  left: false,
  wentOn: false,
  ...more
})
const bad = (more: Partial<Ticket> = {}) => ticket({ constraints: [BAD], answered: true, ...more })
const good = (more: Partial<Ticket> = {}) => ticket({ constraints: [GOOD], answered: true, ...more })
const plain = (more: Partial<Ticket> = {}) => ticket({ answered: true, template: TEMPLATE, ...more })

const REQUESTS = { grammar: bad, schema: good, template: plain }
const NAMES = { [BAD.digest]: 'grammar', [GOOD.digest]: 'schema', [TEMPLATE.digest]: 'template' }

interface Case {
  what: string
  trouble: Parameters<typeof findBlame>[1]
  tickets: (Partial<Ticket> & { has: keyof typeof REQUESTS })[]
  inputs: string[]
  certain: boolean
}

t.test('the input guard finds the input that is to blame', t => {
  for (const { what, tickets, trouble, ...expected } of readFixture<{ cases: Case[] }>('blame-cases.yaml').cases) {
    const open = tickets.map(({ has, ...more }) => REQUESTS[has](more))
    const { inputs, certain } = findBlame(open, trouble, () => false)
    const names = inputs.map(({ digest }) => NAMES[digest])
    t.same({ inputs: names, certain }, expected, what)
  }
  const completed = findBlame([bad(), good()], 'loop', ({ digest }) => digest === GOOD.digest)
  const blamed = [completed.inputs, completed.certain]
  t.same(blamed, [[BAD], true], 'an input that has completed before is not blamed for another')
  const both = findBlame(
    [good({ answered: false, template: TEMPLATE })],
    'beside',
    ({ digest }) => digest === TEMPLATE.digest
  )
  t.same([both.inputs, both.certain], [[GOOD], true], 'a schema with a working template')

  const reader = plain({ answered: false })
  const always = () => true
  t.equal(findBlame([reader], 'memory', always).certain, true)
  const isCertain = findBlame([reader, plain({ generated: true })], 'memory', always).certain
  t.equal(isCertain, false, 'the memory may belong to another answer, so a working template is not blocked')
  t.equal(findBlame([reader, plain({ generated: true })], 'memory', () => false).certain, true)
  t.end()
})

t.test('large inputs explain large memory use', t => {
  const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }
  t.ok(isLarge({ messages: [{ role: 'user', content: [{ type: 'text', text: 'x' }, image] }] }))
  t.ok(isLarge({ messages: [{ role: 'user', content: 'x'.repeat(200_000) }] }))
  t.notOk(
    isLarge({
      messages: [
        { role: 'user', content: 'x' },
        { role: 'assistant', content: null }
      ]
    })
  )
  t.notOk(isLarge({ prompt: 'x' }))
  t.end()
})

t.test('the second offence is rejected, for a while', t => {
  let time = 0
  const book = createInputRecords(() => time)
  const refused = () => {
    try {
      book.check([GOOD, BAD], 'a/b')
      return undefined
    } catch (error) {
      return error as CorralError
    }
  }
  book.strike(BAD, 'stuck')
  t.equal(refused(), undefined)
  book.strike(BAD, 'stuck')
  t.match(refused(), { code: 'input_blocked', status: 400, details: { digest: BAD.digest, cause: 'stuck' } })
  time += 11 * 60_000
  t.equal(refused(), undefined)
  book.strike(BAD, 'stuck')
  t.equal(refused(), undefined, 'the count starts over')
  for (let n = 0; n < 5000; n++) book.strike(inputOf('grammar', `${n}`), 'stuck')
  book.strike(BAD, 'stuck')
  t.equal(refused(), undefined, 'limited to the newest entries')
  t.end()
})

t.test('the input guard reads the grammars and schemas of a request', t => {
  const kinds = (fields: object) => listConstraints({ messages: [], ...fields }).map(({ kind }) => kind)
  t.same(kinds({}), [])
  t.same(kinds({ grammar: '', tools: [], response_format: { type: 'text' } }), [])
  t.same(kinds({ grammar: 'root ::= "a"' }), ['grammar'])
  t.same(kinds({ response_format: { type: 'json_schema', json_schema: { schema: {} } }, tools: [{}] }), [
    'schema',
    'schema'
  ])
  t.same(kinds({ json_schema: {}, response_format: { type: 'json_object', schema: {} } }), ['schema', 'schema'])
  t.same(inputOf('grammar', 'a ::= b\n\n'), inputOf('grammar', ' a  ::= b'), 'whitespace makes no difference')
  t.not(inputOf('grammar', 'x').digest, inputOf('schema', 'x').digest)
  t.end()
})

t.test('a suspect runs alone until it has generated something', async t => {
  const book = createInputRecords()
  const guard = createInputGuard(book, 'a/b')
  const { signal } = new AbortController()
  const log: string[] = []
  const ends: Record<string, () => void> = {}
  const run = (name: string, grammar?: string) => {
    const fields = { ...(grammar && { grammar }) }
    const ask = async (own: Ticket) => {
      log.push(name)
      await new Promise<void>(resolve => {
        ends[name] = resolve
        ends[`${name} generates`] = () => guard.progressed(own)
      })
      return name
    }
    return guard.run(fields, signal, ask)
  }
  const settle = () => new Promise(resolve => setImmediate(resolve))
  const [bad] = listConstraints({ grammar: 'bad' })
  book.suspect(bad!)
  const first = run('first')
  const second = run('suspect', 'bad')
  const third = run('third')
  await settle()
  t.same(log, ['first', 'third'])
  ends.first!()
  ends.third!()
  await first
  await third
  await settle()
  const fourth = run('fourth')
  await settle()
  t.same(log, ['first', 'third', 'suspect'])
  ends['suspect generates']!()
  await settle()
  t.same(log, ['first', 'third', 'suspect', 'fourth'])
  ends.suspect!()
  await second
  t.notOk(book.isSuspect(bad!), 'it has completed')
  ends.fourth!()
  await fourth

  const gone = new CorralError('engine_crashed', 'Stuck.', { details: { cause: 'stuck' } })
  book.suspect(bad!)
  const caught = run('caught', 'bad').catch(error => error)
  const waits = run('waits').catch(error => error)
  await settle()
  t.match(guard.convict('loop', gone), { certain: true, inputs: [bad] })
  guard.close(gone)
  t.match(await waits, { code: 'engine_crashed', details: { sent: false } })
  t.ok(caught)
})
