import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { test } from 'tap'
import { abortAfter } from '../../core/system/abort-after.ts'
import { until } from '../support/corral.ts'

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

test('abortAfter fires although garbage is collected before, also among other signals', async t => {
  const never = new AbortController()
  const reasons: string[] = []
  for (const make of [() => abortAfter(300), () => AbortSignal.any([never.signal, abortAfter(300)])]) {
    make().addEventListener('abort', event => reasons.push((event.target as AbortSignal).reason.name))
  }
  // Garbage of an earlier turn of the event loop.
  setTimeout(collectGarbage, 50)
  await until('both timeouts fired', () => reasons.length === 2)
  t.strictSame(reasons, ['TimeoutError', 'TimeoutError'])
})
