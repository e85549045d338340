import { useState } from 'preact/hooks'
import { formatNumber } from '../parts/formats.ts'
import { Choices } from '../parts/forms.tsx'
import { Fault, Table } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { fill, texts } from '../texts/texts.ts'

type Counts = Record<'requests' | 'tokens_in' | 'tokens_cached' | 'tokens_out', number>

const countsIn = (row: Counts) =>
  [row.requests, row.tokens_in, row.tokens_cached, row.tokens_out].map(count => formatNumber(count))

/** Usage of models in the last days. */
export function UsageTab() {
  const t = texts.value
  const [by, setBy] = useState<'model' | 'day' | 'key'>('model')
  const { reply, fault } = useReply<{ usage: (Counts & { name: string })[]; total: Counts }>(
    `api/usage?by=${by}&since=30d`
  )
  const names = { model: t.model, day: t.day, key: t.keyField }
  return (
    <>
      <Choices label={t.groupBy} names={names} chosen={by} onChoose={setBy}>
        <span class="quiet">{fill(t.lastDays, { days: 30 })}</span>
      </Choices>
      <Fault text={fault?.message} />
      {reply && (
        <Table
          head={[names[by], t.requestCount, t.tokensIn, t.tokensCached, t.tokensOut]}
          rows={reply.usage.map(row => [row.name, ...countsIn(row)])}
          total={[t.total, ...countsIn(reply.total)]}
        />
      )}
    </>
  )
}
