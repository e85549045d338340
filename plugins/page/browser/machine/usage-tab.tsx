import { useState } from 'preact/hooks'
import { formatNumber } from '../parts/formats.ts'
import { fill, texts } from '../texts/texts.ts'
import { useReply } from './use-reply.ts'

interface Counts {
  requests: number
  tokens_in: number
  tokens_cached: number
  tokens_out: number
}
interface UsageReply {
  usage: (Counts & { name: string })[]
  total: Counts
}
const FIELDS = ['requests', 'tokens_in', 'tokens_cached', 'tokens_out'] as const

/** Usage of models in the last days. */
export function UsageTab() {
  const t = texts.value
  const [by, setBy] = useState<'key' | 'model' | 'day'>('model')
  const { reply, fault } = useReply<UsageReply>(`api/usage?by=${by}&since=30d`)
  const titles = {
    requests: t.requestCount,
    tokens_in: t.tokensIn,
    tokens_cached: t.tokensCached,
    tokens_out: t.tokensOut
  }
  const names = { key: t.keyField, model: t.model, day: t.day }
  return (
    <>
      <fieldset class="row plain-set" aria-label={t.groupBy}>
        {(['model', 'day', 'key'] as const).map(each => (
          <button key={each} type="button" class="button" aria-pressed={each === by} onClick={() => setBy(each)}>
            {names[each]}
          </button>
        ))}
        <span class="quiet">{fill(t.lastDays, { days: 30 })}</span>
      </fieldset>
      {fault && <p class="is-error">{fault}</p>}
      {reply && (
        <div class="table-frame" tabIndex={0}>
          <table class="data-table">
            <thead>
              <tr>
                <th>{names[by]}</th>
                {FIELDS.map(field => (
                  <th key={field}>{titles[field]}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {reply.usage.map(row => (
                <tr key={row.name}>
                  <td>{row.name}</td>
                  {FIELDS.map(field => (
                    <td key={field}>{formatNumber(row[field])}</td>
                  ))}
                </tr>
              ))}
              <tr class="total">
                <th scope="row">{t.total}</th>
                {FIELDS.map(field => (
                  <td key={field}>{formatNumber(reply.total[field])}</td>
                ))}
              </tr>
            </tbody>
          </table>
        </div>
      )}
    </>
  )
}
