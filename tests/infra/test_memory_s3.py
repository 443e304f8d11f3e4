"""The S3 server in memory asks nobody for a password, so it answers programs and no pages."""

import http.client

from tests.s3_server import serve_s3


def test_it_answers_a_program_but_no_page_of_a_browser() -> None:
    with serve_s3("bucket") as variables:
        address = variables["AWS_ENDPOINT_URL"].removeprefix("http://")

        def status(method: str, path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection(address, timeout=30)
            connection.request(method, path, headers={"Host": address, **headers})
            return connection.getresponse().status

        assert status("GET", "/bucket?list-type=2") == 200
        assert status("GET", "/bucket?list-type=2", Origin="http://evil.example") == 403
        assert status("GET", "/bucket?list-type=2", Host="evil.example") == 403
        assert status("POST", "/moto-api/reset", Origin="null") == 403
