import { texts } from '../texts/texts.ts'
import { useReply } from './use-reply.ts'

/** The fields of an audit entry that are shown. */
interface AuditEntry {
  time: string
  key?: string
  address?: string
  method?: string
  route?: string
  /** For requests to models, which have no route here: the operation and API. */
  operation?: string
  surface?: string
  event?: string
  model?: string
  target?: string
  status?: number
}

/** The audit log, newest first. */
export function AuditTab() {
  const t = texts.value
  const { reply, fault, again } = useReply<{ entries: AuditEntry[] }>('api/audit?limit=200')
  return (
    <>
      <div class="row">
        <button type="button" class="button" onClick={again}>
          {t.refresh}
        </button>
      </div>
      {fault && <p class="is-error">{fault}</p>}
      {reply?.entries.length === 0 && <p class="quiet">{t.nothingYet}</p>}
      {reply && reply.entries.length > 0 && (
        <div class="table-frame" tabIndex={0}>
          <table class="data-table">
            <thead>
              <tr>
                <th>{t.time}</th>
                <th>{t.who}</th>
                <th>{t.what}</th>
                <th>{t.model}</th>
                <th>{t.result}</th>
              </tr>
            </thead>
            <tbody>
              {reply.entries.toReversed().map((entry, index) => (
                <tr key={`${entry.time} ${index}`}>
                  <td>{new Date(entry.time).toLocaleString()}</td>
                  <td>{entry.key ?? entry.address}</td>
                  <td>{whatOf(entry)}</td>
                  <td>{entry.model ?? entry.target}</td>
                  <td>{entry.status}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  )
}

function whatOf({ event, method, route, operation, surface }: AuditEntry): string {
  if (event) return event
  return (route ? [method, route] : [operation, surface && `(${surface})`]).filter(Boolean).join(' ')
}
