import t from 'tap'
import { isFinalRefusal, refusalKind } from '../../../../plugins/models/hubs/hf-like.ts'
import type { HubResponse } from '../../../../plugins/models/hubs/hub-fetch.ts'
import { isSuccess, modelScopeRefusal, parseEnvelope } from '../../../../plugins/models/hubs/modelscope.ts'
import { hubRefusal, type RefusalKind } from '../../../../plugins/models/hubs/refusal.ts'
import { readFixture } from '../../../support/fixture.ts'
import { answer, NOW, WITH_TOKEN } from './support.ts'

interface RefusalCase {
  name: string
  /** `token`: a token was sent with the request. `said`: the JSON of the reply. */
  response: Partial<HubResponse> & { status: number; said?: unknown; token?: boolean }
  isFile?: boolean
  kind: RefusalKind
  /** The error's code, and a pattern for its message. */
  code: string
  message: string
}

const CASES = readFixture<Record<'huggingFace' | 'modelScope', RefusalCase[]>>('hub-refusals.yaml')
const toResponse = ({ status, token, ...more }: RefusalCase['response']) =>
  answer(status, { ...more, ...(token && WITH_TOKEN) })

t.test('refusals of Hugging Face and CSGHub are classified', async t => {
  for (const { name, response, isFile = false, kind, code, message } of CASES.huggingFace) {
    const given = toResponse(response)
    t.equal(refusalKind(given, isFile), kind, name)
    const subject = {
      title: 'The Hub',
      id: 'acme/Tiny',
      page: 'https://hub.example.org/acme/Tiny',
      revision: 'v9',
      tokenAdvice: 'set HF_TOKEN',
      ...(isFile ? { file: 'a.gguf' } : {})
    }
    const error = hubRefusal(kind, given, subject, NOW)
    t.equal(error.code, code, name)
    t.match(error.message, new RegExp(message), name)
    t.notMatch(error.message, /hf_secret|undefined/, name)
    t.match(error.message, /[.?]$/, name)
  }
  const odd = answer(404, { headers: { 'x-error-code': 'constructor' } })
  t.equal(refusalKind(odd, false), 'unknown-repository', 'an unknown code with the name of a method')
  const busy = answer(429, { headers: { 'retry-after': '9' } })
  const limited = hubRefusal('rate-limited', busy, { title: 'The Hub', id: 'a/b' }, NOW)
  t.match(limited, { retryAfter: 9, details: { hub: 'The Hub', repository: 'a/b', hubStatus: 429 } })
  t.equal(isFinalRefusal(answer(500, { said: { code: 'AUTH-ERR-0' } })), true)
  t.equal(isFinalRefusal(answer(500, { said: { code: 'SYS-ERR-0' } })), false)
  t.equal(isFinalRefusal(answer(500)), false)
})

t.test('refusals of ModelScope are classified', async t => {
  for (const { name, response, code, message } of CASES.modelScope) {
    const given = toResponse(response)
    const body = await parseEnvelope(given)
    t.equal(isSuccess(given, body), false, name)
    const subject = { title: 'ModelScope', id: 'acme/Tiny', page: 'https://m/models/acme/Tiny', revision: 'main' }
    const error = modelScopeRefusal(given, body, subject, NOW)
    t.equal(error.code, code, name)
    t.match(error.message, new RegExp(message), name)
  }
  t.equal(isSuccess(answer(200), { Code: 200, Success: true, Data: {} }), true)
  const page = await parseEnvelope({ text: '<html>' })
  t.equal(isSuccess(answer(200), page), true, 'a reply without an envelope does not indicate failure')
})
