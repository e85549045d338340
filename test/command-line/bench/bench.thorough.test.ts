import { existsSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { withCorral } from '../../../scripts/bench/corral-server.ts'
import { withBoth } from '../../../scripts/bench/keys.ts'
import { type Load, listWays, type Way } from '../../../scripts/bench/loads.ts'
import { estimate } from '../../../scripts/bench/measuring.ts'
import { memoryOfStreams, timeOfCommand } from '../../../scripts/bench/memory.ts'
import { compare } from '../../../scripts/bench/rounds.ts'
import { withServers } from '../../../scripts/bench/servers.ts'
import { newHome } from '../command.ts'

const onLinux = { skip: process.platform !== 'linux' }

t.test('estimate returns the median and its interval', async t => {
  t.same(estimate([3, 1, 2]), { median: 2, low: 1, high: 3 }, 'too few values for 95 %: all of them')
  // According to the binomial distribution, the second and the eighth of nine values enclose the true median in 96 % of
  // all cases. The sixth and the fifteenth of twenty values do so too.
  t.same(estimate([9, 1, 2, 3, 4, 5, 6, 7, 100]), { median: 5, low: 2, high: 9 })
  const twenty = Array.from({ length: 20 }, (_, index) => index + 1)
  t.same(estimate(twenty), { median: 10, low: 6, high: 15 })
})

for (const kind of ['burst', 'paced'] as const) {
  t.test(`the benchmark compares contenders in front of the ${kind} engine`, onLinux, async t => {
    const home = newHome(t)
    const tokens = 5
    await withServers(home, kind, ['direct', 'pipe', 'corral'], async ({ contenders }) => {
      for (const stream of kind === 'burst' ? [false, true] : [true]) {
        const load: Load = { group: 'short', engines: [kind], stream, concurrent: 2, requests: 4, tokens }
        const ways = contenders.flatMap(contender => listWays(contender, load))
        for (const { name, contender, request } of ways) {
          const { status, text, events } = await contender.client.send(request)
          t.equal(status, 200, name)
          // One event per word, plus the role, the end and [DONE] in some APIs. Anthropic's API has six others.
          if (stream) t.ok(events > tokens && events <= tokens + 6, `${name}: ${events} events`)
          else t.match(text, '"content":" word word word word word"', name)
        }
        const figures = await compare(ways, load, 1)
        t.same(
          figures.map(({ way }) => way),
          ways.map(({ name }) => name)
        )
        for (const { way, errors, perRequest, processorRatio } of figures) {
          t.same(errors, {}, way)
          t.equal(perRequest !== undefined && perRequest > 0, way !== 'direct', `${way} has used processor time`)
          t.equal(processorRatio !== undefined, way.startsWith('corral'), `${way} is compared with the pipe`)
        }
      }
    })
  })
}

t.test('withBoth starts a corral with keys, limits, audit and metrics, and one without', onLinux, async t => {
  const home = newHome(t)
  await withBoth(home, async (without, withAll) => {
    const ask = ({ contender, request }: Way, more: object = {}) => contender.client.send({ ...request, ...more })
    for (const way of [without, withAll]) t.equal((await ask(way)).status, 200)
    t.equal((await ask(withAll, { headers: without.request.headers })).status, 401, 'a key is required')
    const own = { method: 'GET', path: '/metrics', body: undefined }
    t.equal((await ask(without, own)).status, 404, 'no metrics')
    t.equal((await ask(withAll, own)).status, 403, 'metrics, which this key may not read')
    t.notOk(existsSync(join(without.home, 'logs', 'audit')), 'no audit')
    t.ok(existsSync(join(withAll.home, 'logs', 'audit')))
    const limits = await ask(withAll, { method: 'GET', path: '/api/whoami', body: undefined })
    t.match(limits.text, /requests_per_minute/)
    t.match(limits.text, /tokens_per_day/)
  })
})

t.test('the start time comes from the log', onLinux, async t => {
  await withCorral(newHome(t), async (_, startedIn) => t.ok(startedIn > 0, `${startedIn} ms`))
})

t.test('the benchmark measures memory of streams and processor time of commands', onLinux, async t => {
  const home = newHome(t)
  const { before, most } = await memoryOfStreams(home, 20, 3)
  t.ok(before > 20 && most > 20, `${before} and ${most} MiB: at least as much as Node.js alone`)
  t.ok((await timeOfCommand(home, ['--help'])) > 10, 'at least as much as Node.js alone')
  await t.rejects(timeOfCommand(home, ['no-such-command']), 'a failed command has no time')
})
