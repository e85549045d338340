import t from 'tap'
import { isFinalRefusal, refusalKind } from '../../../../plugins/models/hubs/hf-like.ts'
import type { HubResponse } from '../../../../plugins/models/hubs/hub-fetch.ts'
import { isSuccess, modelScopeRefusal, parseEnvelope } from '../../../../plugins/models/hubs/modelscope.ts'
import { hubRefusal, type RefusalKind } from '../../../../plugins/models/hubs/refusals.ts'
import { answer, NOW, WITH_TOKEN } from './support.ts'

t.test('refusals of Hugging Face and CSGHub are classified', async t => {
  const code = (name: string, words?: string) => ({
    headers: { 'x-error-code': name, ...(words ? { 'x-error-message': words } : {}) }
  })
  const words = (text: string) => ({ headers: { 'x-error-message': text } })
  const table: [string, HubResponse, boolean, RefusalKind, string, RegExp][] = [
    [
      'unknown, anonymous',
      answer(401, { said: { error: 'Invalid username or password.' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /does not exist, is private, or is spelled in another case.*HF_TOKEN/
    ],
    [
      'unknown, anonymous, with code',
      answer(401, code('RepoNotFound')),
      false,
      'unknown-repository',
      'repo_not_found',
      /without a token/
    ],
    [
      'unknown, token',
      answer(404, { ...code('RepoNotFound'), ...WITH_TOKEN }),
      false,
      'unknown-repository',
      'repo_not_found',
      /whether the token in use may see it/
    ],
    [
      'unknown, plain 404',
      answer(404, { said: { error: 'Not found' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /acme\/Tiny/
    ],
    [
      'unknown, page',
      answer(404, { text: '<html>', headers: { 'content-type': 'text/html' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /HTML page: is it the right endpoint/
    ],
    [
      'bad name',
      answer(400, { said: { error: 'Bad repo name' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /Bad repo name/
    ],
    [
      'bad token',
      answer(401, { ...words('Invalid credentials in Authorization header'), ...WITH_TOKEN }),
      false,
      'bad-token',
      'hub_forbidden',
      /does not accept the token/
    ],
    [
      'bad token without words',
      answer(401, WITH_TOKEN),
      false,
      'bad-token',
      'hub_forbidden',
      /wrong, expired or revoked/
    ],
    [
      'gated, anonymous',
      answer(401, code('GatedRepo')),
      true,
      'gated',
      'hub_forbidden',
      /Agree at https:\/\/hub.example.org\/acme\/Tiny, then set HF_TOKEN/
    ],
    [
      'gated by its words',
      answer(401, {
        said: { error: 'Access to model acme/Tiny is restricted. You must be authenticated to access it.' }
      }),
      false,
      'gated',
      'hub_forbidden',
      /agree to its terms/
    ],
    [
      'gated, not on the list',
      answer(403, { ...code('GatedRepo', 'you are not in the authorized list'), ...WITH_TOKEN }),
      true,
      'gated',
      'hub_forbidden',
      /not approved. Ask for access at/
    ],
    [
      'gated without code',
      answer(403, {
        ...words('Access to model X is restricted and you are not in the authorized list'),
        ...WITH_TOKEN
      }),
      true,
      'gated',
      'hub_forbidden',
      /not approved/
    ],
    ['a file, anonymous 401', answer(401), true, 'private', 'hub_forbidden', /needs a login/],
    [
      'revision',
      answer(404, code('RevisionNotFound')),
      false,
      'unknown-revision',
      'repo_not_found',
      /no revision "v9"/
    ],
    [
      'revision by its words',
      answer(404, { said: { error: 'Invalid rev id: v9' } }),
      false,
      'unknown-revision',
      'repo_not_found',
      /no revision/
    ],
    [
      'file',
      answer(404, { ...code('EntryNotFound'), text: 'Entry not found' }),
      true,
      'unknown-file',
      'repo_not_found',
      /no longer has the file "a.gguf"/
    ],
    ['file, plain 404', answer(404), true, 'unknown-file', 'repo_not_found', /Pull the model again/],
    [
      'disabled',
      answer(403, words('Access to this resource is disabled.')),
      false,
      'disabled',
      'hub_forbidden',
      /has disabled/
    ],
    ['forbidden', answer(403, { text: 'no' }), false, 'forbidden', 'hub_forbidden', /status 403.*says: no/],
    ['legal', answer(451), false, 'forbidden', 'hub_forbidden', /^(?!.*token).*for legal reasons \(status 451\)/],
    ['proxy', answer(407), false, 'server-error', 'hub_unreachable', /proxy .* requires a user name and a password/],
    [
      'portal',
      answer(511),
      true,
      'server-error',
      'hub_unreachable',
      /login page answered instead of .* \(status 511\)/
    ],
    ...[401, 403].map((status): [string, HubResponse, boolean, RefusalKind, string, RegExp] => [
      `login page with ${status}`,
      answer(status, { text: '<html><title>Sign\u001b[2J\n in</title>', headers: { 'content-type': 'text/html' } }),
      true,
      status === 401 ? 'private' : 'forbidden',
      'hub_unreachable',
      /^(?!.*token).*login page answered instead of .* \(title "Sign\\\\u001b\[2J in"\)/
    ]),
    ['teapot', answer(418), false, 'server-error', 'hub_unreachable', /status 418\)\. Is its address right/],
    [
      'limited',
      answer(429, { headers: { ratelimit: '"api";r=0;t=55' } }),
      false,
      'rate-limited',
      'hub_rate_limited',
      /in 56 s.*HF_TOKEN/
    ],
    ['trouble', answer(503, { text: 'oops' }), false, 'server-error', 'hub_unreachable', /status 503.*oops/],
    [
      'csghub unknown',
      answer(500, { said: { code: 'SYS-ERR-3', msg: 'SYS-ERR-3: no rows' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /./
    ],
    [
      'csghub unknown in git',
      answer(500, { said: { msg: 'GIT-ERR-9: not found' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /./
    ],
    [
      'csghub private',
      answer(500, { said: { code: 'AUTH-ERR-0', msg: 'unauthorized' } }),
      false,
      'private',
      'hub_forbidden',
      /private or needs a login/
    ],
    [
      'csghub forbidden',
      answer(403, { said: { code: 'AUTH-ERR-2', msg: 'no' }, ...WITH_TOKEN }),
      true,
      'private',
      'hub_forbidden',
      /token in use/
    ],
    [
      'csghub bad token',
      answer(401, { said: { code: 'AUTH-ERR-4' }, ...WITH_TOKEN }),
      false,
      'bad-token',
      'hub_forbidden',
      /./
    ],
    [
      'csghub revision',
      answer(500, { said: { code: 'GIT-ERR-11' } }),
      false,
      'unknown-revision',
      'repo_not_found',
      /./
    ],
    ['csghub file', answer(404, { said: { code: 'GIT-ERR-15' } }), true, 'unknown-file', 'repo_not_found', /./],
    [
      'csghub trouble',
      answer(500, { said: { code: 'SYS-ERR-0', msg: 'broken' } }),
      false,
      'server-error',
      'hub_unreachable',
      /broken/
    ]
  ]
  for (const [name, given, isFile, kind, expected, message] of table) {
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
    t.equal(error.code, expected, name)
    t.match(error.message, message, name)
    t.notMatch(error.message, /hf_secret|undefined/, name)
    t.match(error.message, /[.?]$/, name)
  }
  const limited = hubRefusal(
    'rate-limited',
    answer(429, { headers: { 'retry-after': '9' } }),
    { title: 'The Hub', id: 'a/b' },
    NOW
  )
  t.match(limited, { retryAfter: 9, details: { hub: 'The Hub', repository: 'a/b', hubStatus: 429 } })
  t.equal(isFinalRefusal(answer(500, { said: { code: 'AUTH-ERR-0' } })), true)
  t.equal(isFinalRefusal(answer(500, { said: { code: 'SYS-ERR-0' } })), false)
  t.equal(isFinalRefusal(answer(500)), false)
})

t.test('refusals of ModelScope are classified', async t => {
  const table: [string, HubResponse, string, RegExp][] = [
    [
      '404',
      answer(404, { said: { Code: 404, Success: false, Message: 'Model not found.' } }),
      'repo_not_found',
      /MODELSCOPE_API_TOKEN/
    ],
    [
      'success false',
      answer(200, { said: { Code: 10010205001, Success: false, Message: 'Model not found.' } }),
      'repo_not_found',
      /does not exist/
    ],
    [
      'openapi',
      answer(200, { said: { success: false, code: 'E3020', message: 'x' } }),
      'repo_not_found',
      /does not exist/
    ],
    [
      'revision',
      answer(404, { said: { Code: 404, Success: false, Message: 'Revision main not found' } }),
      'repo_not_found',
      /no revision "main".*"master"/
    ],
    ['forbidden', answer(403, { said: { Success: false, Message: 'no' } }), 'hub_forbidden', /private/],
    ['login', answer(200, { said: { Success: false, Message: 'please login' } }), 'hub_forbidden', /private/],
    ['bad token', answer(401, WITH_TOKEN), 'hub_forbidden', /wrong, expired or revoked/],
    ['limited', answer(429, { headers: { 'retry-after': '1.5' } }), 'hub_rate_limited', /in 2 s/],
    ['trouble', answer(502), 'hub_unreachable', /status 502/],
    ['strange', answer(200, { said: { Success: false, Code: 77, Message: 'odd' } }), 'hub_unreachable', /code 77.*odd/]
  ]
  for (const [name, given, code, message] of table) {
    const body = await parseEnvelope(given)
    t.equal(isSuccess(given, body), false, name)
    const subject = { title: 'ModelScope', id: 'acme/Tiny', page: 'https://m/models/acme/Tiny', revision: 'main' }
    const error = modelScopeRefusal(given, body, subject, NOW)
    t.equal(error.code, code, name)
    t.match(error.message, message, name)
  }
  t.equal(isSuccess(answer(200), { Code: 200, Success: true, Data: {} }), true)
  t.equal(
    isSuccess(answer(200), await parseEnvelope({ text: '<html>' })),
    true,
    'a reply without an envelope does not indicate failure'
  )
})
