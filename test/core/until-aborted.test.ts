import t from 'tap'
import { untilAborted } from '../../core/contracts/progress.ts'

t.test('untilAborted ends with the signal, and the pending work may fail later', async t => {
  const unhandled: unknown[] = []
  const note = (error: unknown) => unhandled.push(error)
  process.on('unhandledRejection', note)
  t.teardown(() => process.off('unhandledRejection', note))
  const failing = () => new Promise<never>((_, reject) => setTimeout(() => reject(new Error('late')), 5))

  const gone = new AbortController()
  const waiting = untilAborted(failing(), gone.signal)
  gone.abort(new Error('gone'))
  await t.rejects(waiting, { message: 'gone' })
  await t.rejects(untilAborted(failing(), gone.signal), { message: 'gone' }, 'also if it was aborted before')
  await t.rejects(untilAborted(Promise.resolve(1), gone.signal), { message: 'gone' })
  await new Promise(resolve => setTimeout(resolve, 20))
  t.same(unhandled, [])

  t.equal(await untilAborted(Promise.resolve(1), new AbortController().signal), 1)
  t.equal(await untilAborted(Promise.resolve(1), undefined), 1)
  await t.rejects(untilAborted(failing(), new AbortController().signal), { message: 'late' })
})
